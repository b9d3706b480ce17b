// Browsers refuse workers from files. There, a hidden frame does the work: it is enough for the search.
// Messages are copied, as a worker's are: the page would change what the search still reads, and the search the page's state.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.inside = new Promise((ready) => {
        this.frame.onload = () => {
          const inside = this.frame.contentWindow;
          inside.postMessage = (message) => {
            const data = structuredClone(message);
            setTimeout(() => this.onmessage?.({ data }));
          };
          const script = inside.document.createElement("script");
          script.onload = () => ready(inside);
          script.src = url;
          inside.document.head.append(script);
        };
      });
      document.body.append(this.frame);
    }
    postMessage(message) {
      const data = structuredClone(message);
      this.inside.then((inside) => inside.onmessage({ data }));
    }
    terminate() {
      this.frame.remove();
    }
  };
}
