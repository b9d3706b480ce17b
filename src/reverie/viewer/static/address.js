// What the address of the page remembers: the run, the episode, the row, the tab, the zoom and the chosen runs.

let known = new URLSearchParams(location.search), due = 0;

export const remembered = (name) => known.get(name);

// Remembers values by name; null forgets one. The address follows a moment later: browsers limit how often it changes.
export function remember(values) {
  for (const [name, value] of Object.entries(values))
    if (value === null || value === undefined) known.delete(name);
    else known.set(name, value);
  clearTimeout(due);
  due = setTimeout(writeAddress, 200);
}

export function writeAddress() {
  clearTimeout(due);
  const query = known.toString().replaceAll("%2C", ",").replaceAll("%2F", "/");
  history.replaceState(null, "", query ? `?${query}` : location.pathname);
}
