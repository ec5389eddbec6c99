/** The two panels beside the conversation: beside it where there is room, over it where there is none. */

import { byId } from "./dom.js";
import { keep, recall } from "./store.js";

/** Opens and closes the list of conversations and the settings. */
export class Panels {
  constructor() {
    this.narrow = matchMedia("(max-width: 860px)");
    this.sidebar = recall("sidebar") !== "closed" && !this.narrow.matches;
    this.settings = false;
    byId("sidebar-open").addEventListener("click", () => this.show("sidebar", true));
    byId("sidebar-close").addEventListener("click", () => this.show("sidebar", false));
    byId("settings-open").addEventListener("click", () => this.show("settings", !this.settings));
    byId("settings-close").addEventListener("click", () => this.show("settings", false));
    byId("backdrop").addEventListener("click", () => this.close());
    this.narrow.addEventListener("change", () => {
      this.sidebar = !this.narrow.matches && recall("sidebar") !== "closed";
      this.settings &&= !this.narrow.matches;
      this.#draw();
    });
    this.#draw();
  }

  show(/** @type {"sidebar" | "settings"} */ name, /** @type {boolean} */ open) {
    this[name] = open;
    if (open && this.narrow.matches) this[name === "sidebar" ? "settings" : "sidebar"] = false;
    if (name === "sidebar" && !this.narrow.matches) keep("sidebar", open ? "" : "closed");
    this.#draw();
    if (open) byId(name === "sidebar" ? "sidebar-close" : "settings-close").focus();
    else byId(`${name}-open`).focus();
  }

  /** Closes what lies over the conversation; whether there was anything. */
  close() {
    if (this.settings) this.show("settings", false);
    else if (this.narrow.matches && this.sidebar) this.show("sidebar", false);
    else return false;
    return true;
  }

  #draw() {
    const over = this.narrow.matches && (this.sidebar || this.settings);
    document.body.classList.toggle("with-sidebar", this.sidebar);
    document.body.classList.toggle("with-settings", this.settings);
    byId("sidebar").hidden = !this.sidebar;
    byId("settings").hidden = !this.settings;
    byId("backdrop").hidden = !over;
    byId("main").inert = over;
    byId("sidebar-open").hidden = this.sidebar && !this.narrow.matches;
    byId("sidebar-open").setAttribute("aria-expanded", String(this.sidebar));
    byId("settings-open").setAttribute("aria-expanded", String(this.settings));
  }
}
