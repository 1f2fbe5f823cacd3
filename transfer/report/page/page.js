"use strict";
// Sorts and filters the tables, and shows the record behind a row. All text goes in as text, never as markup.

const MOST_CHOICES = 12;
const MOST_BARE = 8; // rows of a table that needs no search
const EMPTY = "(empty)";
const natural = new Intl.Collator("en", { numeric: true });

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

const wordsOf = (text) => text.toLowerCase().split(/\s+/).filter(Boolean);
const valueOf = (cell) => cell.dataset.v ?? cell.textContent;

// The address holds searches, choices and sorting, so that a link shows the same rows: #TABLE.COLUMN=VALUE&...
const address = {
  view: new URLSearchParams(/^#(part-|run=)/.test(location.hash) ? "" : location.hash.slice(1)),
  set(name, value) {
    if (value) this.view.set(name, value);
    else this.view.delete(name);
    this.write();
  },
  write() {
    const view = this.view.toString();
    history.replaceState(null, "", location.href.split("#")[0] + (view && "#" + view));
  },
};

class Table {
  constructor(table) {
    this.name = table.closest(".scroll").dataset.name;
    this.body = table.tBodies[0];
    this.heads = [...table.tHead.rows[0].cells];
    const room = table.closest(".scroll");
    this.atStart = this.shown = this.body.rows.length;
    const rest = room.nextElementSibling?.matches("template") ? [...room.nextElementSibling.content.children] : [];
    this.rows = [...this.body.rows, ...rest];
    this.order = this.rows;
    this.words = [];
    this.choices = new Map();
    this.heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => this.sort(column)));
    if (this.rows.length > MOST_BARE) room.before(this.tools());
    const hint = element("p", { className: "soft sideways", textContent: "Scroll sideways for all columns \u2192", hidden: true });
    room.before(hint);
    const watch = new ResizeObserver(() => (hint.hidden = room.scrollWidth <= room.clientWidth + 1));
    for (const part of [room, table]) watch.observe(part);
    this.more = element("button", { type: "button", className: "more", hidden: true });
    this.more.addEventListener("click", () => this.showAll());
    room.after(this.more);
    this.restore();
    this.draw();
  }

  // Takes up what the address says of this table.
  restore() {
    const [column, direction] = address.view.get(`${this.name}.sort`)?.split(/ (?=\S+$)/) ?? [];
    const place = this.heads.findIndex((head) => head.textContent === column);
    if (place >= 0 && ["ascending", "descending"].includes(direction)) this.order = this.sorted(place, direction);
    if (!this.search) return;
    this.search.value = address.view.get(`${this.name}.find`) ?? "";
    this.words = wordsOf(this.search.value);
    for (const [column, select] of this.selects) {
      const wanted = address.view.get(`${this.name}.${select.title}`);
      const value = wanted === EMPTY ? "" : wanted;
      if (wanted === null || ![...select.options].some((option) => option.value === "=" + value)) continue;
      select.value = "=" + value;
      this.choices.set(column, value);
    }
  }

  tools() {
    const search = (this.search = element("input", { type: "search" }));
    search.addEventListener("input", () => {
      this.words = wordsOf(search.value);
      address.set(`${this.name}.find`, search.value.trim());
      this.draw();
    });
    const room = element("div", { className: "tools" }, element("label", {}, "Find rows with", search));
    const selects = this.heads.map((head, column) => [column, this.choice(head, column)]);
    this.selects = selects.filter(([, select]) => select);
    for (const [, select] of this.selects) room.append(element("label", {}, select.title, select));
    const reset = element("button", { type: "button", textContent: "Reset" });
    reset.addEventListener("click", () => {
      search.value = "";
      for (const [, select] of this.selects) {
        select.selectedIndex = 0;
        address.set(`${this.name}.${select.title}`, "");
      }
      for (const name of ["find", "sort"]) address.set(`${this.name}.${name}`, "");
      this.words = [];
      this.choices.clear();
      this.order = this.rows;
      this.shown = this.atStart;
      for (const head of this.heads) head.setAttribute("aria-sort", "none");
      this.draw();
    });
    this.count = element("output");
    room.append(reset, this.count);
    return room;
  }

  // A list to choose from, where a column has few values and some of them are in several rows.
  choice(head, column) {
    const values = new Set();
    for (const row of this.rows) {
      values.add(valueOf(row.cells[column]));
      if (values.size > MOST_CHOICES) return null;
    }
    const often = head.classList.contains("n") ? 3 : 2;
    if (values.size < 2 || values.size * often > this.rows.length) return null;
    const title = head.textContent;
    const select = element("select", { title }, element("option", { value: "", textContent: "all" }));
    [...values].sort(natural.compare).forEach((value) => {
      select.append(element("option", { value: "=" + value, textContent: value || EMPTY }));
    });
    select.addEventListener("change", () => {
      if (select.value) this.choices.set(column, select.value.slice(1));
      else this.choices.delete(column);
      address.set(`${this.name}.${title}`, select.value === "=" ? EMPTY : select.value.slice(1));
      this.draw();
    });
    return select;
  }

  sort(column) {
    const head = this.heads[column];
    const next = { none: "ascending", ascending: "descending", descending: "none" }[head.getAttribute("aria-sort")];
    address.set(`${this.name}.sort`, next === "none" ? "" : `${head.textContent} ${next}`);
    this.order = this.sorted(column, next);
    this.draw();
  }

  // The rows in the order of a column, whose title says so.
  sorted(column, direction) {
    const head = this.heads[column];
    for (const other of this.heads) other.setAttribute("aria-sort", other === head ? direction : "none");
    const numbers = head.classList.contains("n");
    const keyed = this.rows.map((row) => {
      const text = valueOf(row.cells[column]);
      return { row, empty: text === "", key: numbers ? Number(text) : text };
    });
    const sign = direction === "descending" ? -1 : 1;
    const compare = numbers ? (a, b) => (a < b ? -1 : a > b ? 1 : 0) : natural.compare;
    if (direction !== "none") keyed.sort((a, b) => a.empty - b.empty || (a.empty ? 0 : sign * compare(a.key, b.key)));
    return keyed.map((entry) => entry.row);
  }

  matches(row) {
    for (const [column, value] of this.choices) if (valueOf(row.cells[column]) !== value) return false;
    if (!this.words.length) return true;
    const text = [...row.cells].map((cell) => `${cell.textContent} ${cell.dataset.v ?? ""}`).join(" ").toLowerCase();
    return this.words.every((word) => text.includes(word));
  }

  draw() {
    const found = this.order.filter((row) => this.matches(row));
    this.body.replaceChildren(...found.slice(0, this.shown));
    if (this.count) this.count.value = `${found.length} of ${this.rows.length} rows`;
    this.more.hidden = found.length <= this.shown;
    this.more.textContent = `Show all ${found.length} rows`;
  }

  showAll() {
    this.shown = Infinity;
    this.draw();
  }
}

// The records: a fact that all runs share is kept once.
class Records {
  constructor(block, dialog) {
    this.block = block;
    this.dialog = dialog;
    dialog.addEventListener("close", () => {
      if (location.hash.startsWith("#run=")) address.write();
    });
    dialog.addEventListener("click", (event) => {
      if (event.target === dialog) dialog.close();
    });
    addEventListener("hashchange", () => this.follow());
    this.follow();
  }

  follow() {
    const named = /^#run=(.*)$/.exec(location.hash);
    if (named) {
      try {
        this.open(decodeURIComponent(named[1]));
      } catch (error) {
        if (!(error instanceof URIError)) throw error;
      }
    } else if (this.dialog.open) this.dialog.close();
  }

  open(run) {
    this.data ??= JSON.parse(this.block.textContent);
    const place = this.data.runs.indexOf(run);
    if (place < 0) return;
    const close = element("button", { type: "button", textContent: "Close", autofocus: true });
    close.addEventListener("click", () => this.dialog.close());
    const bar = element("div", { className: "bar" }, element("h2", { id: "record-title" }, ...this.marks(place), run));
    if (this.data.runs.length > 1) bar.append(this.differing());
    bar.append(close);
    this.dialog.replaceChildren(bar, this.facts(place));
    if (!this.dialog.open) this.dialog.showModal();
    this.dialog.scrollTop = 0;
  }

  marks(place) {
    return this.data.marks[place].map((mark) => {
      const kind = mark === "smoke" || mark === "dirty" ? mark : "broken";
      return element("span", { className: `mark ${kind}`, textContent: mark });
    });
  }

  differing() {
    const box = element("input", { type: "checkbox" });
    box.addEventListener("change", () => this.dialog.classList.toggle("differing", box.checked));
    box.checked = this.dialog.classList.contains("differing");
    return element("label", {}, box, " only what differs between runs");
  }

  facts(place) {
    const room = element("div", { className: "facts" });
    const lists = new Map();
    this.data.facts.forEach(([group, name, values]) => {
      const value = values.length > 1 ? values[place] : values[0];
      if (value === null) return;
      if (!lists.has(group)) {
        lists.set(group, element("dl"));
        room.append(element("h3", { textContent: group }), lists.get(group));
      }
      const className = values.length > 1 ? "" : "same";
      lists.get(group).append(element("dt", { className, textContent: name }), this.value(group, value, className));
    });
    return room;
  }

  value(group, value, className) {
    if (group === "origin" && this.data.runs.includes(value)) {
      return element("dd", { className }, element("a", { href: "#run=" + encodeURIComponent(value), textContent: value }));
    }
    return element("dd", { className, textContent: value });
  }
}

// The parts of figures: a click opens the record of a run, and buttons hide the variants.
class Chart {
  constructor(figure) {
    for (const part of figure.querySelectorAll("[data-run]")) {
      part.addEventListener("click", () => (location.hash = "#run=" + encodeURIComponent(part.dataset.run)));
    }
    this.parts = [...figure.querySelectorAll("[data-variant]")];
    const variants = [...new Set(this.parts.map((part) => part.dataset.variant))];
    if (variants.length < 2) return;
    const room = element("div", { className: "variants" });
    room.setAttribute("role", "group");
    room.setAttribute("aria-label", "Variants shown");
    for (const variant of variants) room.append(this.button(variant));
    figure.prepend(room);
  }

  button(variant) {
    const button = element("button", { type: "button", textContent: variant });
    button.setAttribute("aria-pressed", "true");
    button.addEventListener("click", () => {
      const shown = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(shown));
      for (const part of this.parts) if (part.dataset.variant === variant) part.classList.toggle("off", !shown);
    });
    return button;
  }
}

// A link to a folded part opens it; printing opens all.
function unfold() {
  const target = location.hash.startsWith("#part-") && document.getElementById(location.hash.slice(1));
  if (target) target.querySelector("details")?.setAttribute("open", "");
}
addEventListener("hashchange", unfold);
unfold();

const tables = [...document.querySelectorAll("table")].map((table) => new Table(table));
addEventListener("beforeprint", () => {
  tables.forEach((table) => table.showAll());
  document.querySelectorAll("details").forEach((part) => part.setAttribute("open", ""));
});
document.querySelectorAll("figure.plot").forEach((figure) => new Chart(figure));
new Records(document.getElementById("records"), document.getElementById("record"));
