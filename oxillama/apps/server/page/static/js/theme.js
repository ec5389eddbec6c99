/** Light, dark, or as the system has it. */

import { byId } from "./dom.js";
import { icon } from "./icons.js";
import { keep, recall } from "./store.js";

const NEXT = /** @type {const} */ ({ "": "light", light: "dark", dark: "" });
const ICONS = /** @type {const} */ ({ "": "contrast", light: "sun", dark: "moon" });
const NAMES = { "": "the system's", light: "light", dark: "dark" };

/** Makes the button for it work. */
export function startTheme() {
  const button = byId("theme");
  let theme = /** @type {keyof typeof NEXT} */ (recall("theme"));
  if (!(theme in NEXT)) theme = "";
  const draw = () => {
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
    const label = `Colours: ${NAMES[theme]}`;
    button.setAttribute("aria-label", label);
    button.title = label;
    button.replaceChildren(icon(ICONS[theme]));
  };
  button.addEventListener("click", () => {
    theme = NEXT[theme];
    keep("theme", theme);
    draw();
  });
  draw();
}
