// Browsers refuse workers from files. There, a hidden frame does the work: it is enough for the search.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.inside = new Promise((ready) => {
        this.frame.onload = () => {
          const inside = this.frame.contentWindow;
          inside.postMessage = (data) => setTimeout(() => this.onmessage?.({ data }));
          const script = inside.document.createElement("script");
          script.onload = () => ready(inside);
          script.src = url;
          inside.document.head.append(script);
        };
      });
      document.body.append(this.frame);
    }
    postMessage(data) {
      this.inside.then((inside) => inside.onmessage({ data }));
    }
    terminate() {
      this.frame.remove();
    }
  };
}
