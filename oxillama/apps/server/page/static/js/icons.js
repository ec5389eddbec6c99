/** Icons: paths on a grid of 24, with "|" between them, drawn with the colour of the text. */

const PATHS = {
  sidebar: "M4 5h16v14H4zM9.500 5v14",
  plus: "M12 5v14M5 12h14",
  upload: "M12 16V5M7.500 9 12 4.500 16.500 9M5 19.500h14",
  download: "M12 4.500V15M7.500 11 12 15.500 16.500 11M5 19.500h14",
  contrast: "M12 4a8 8 0 1 0 0 16z|M12 4a8 8 0 0 1 0 16",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 3v1.500M12 19.500V21M3 12h1.500M19.500 12H21M5.600 5.600l1.100 1.100M17.300 17.300l1.100 1.100M5.600 18.400l1.100-1.100M17.300 6.700l1.100-1.100",
  moon: "M19.500 14.500A8 8 0 0 1 9.500 4.500a8 8 0 1 0 10 10z",
  keyboard: "M3.500 7h17v10h-17zM7 10.500h.01M10.300 10.500h.01M13.600 10.500h.01M17 10.500h.01M8 14h8",
  sliders: "M4 8h9M17 8h3M4 16h3M11 16h9M15 5.800v4.400M9 13.800v4.400",
  clip: "M18.500 11.500l-6.800 6.800a4 4 0 0 1-5.700-5.700l7.500-7.500a2.700 2.700 0 0 1 3.800 3.800l-7.400 7.400a1.300 1.300 0 0 1-1.900-1.900l6.600-6.600",
  close: "M6 6l12 12M18 6 6 18",
  down: "M12 5v13M6.500 13 12 18.500 17.500 13",
  send: "M12 19V6M6 11.500 12 5.500 18 11.500",
  stop: "M8 8h8v8H8z",
  copy: "M9 9h10v10H9zM15 9V5H5v10h4",
  check: "M5 12.500 10 17.500 19.500 7",
  edit: "M5 19h3.500L19 8.500 15.500 5 5 15.500zM13.500 7l3.500 3.500",
  again: "M19 12a7 7 0 1 1-2.200-5.100M19 4.500V8h-3.500",
  bars: "M5 19V11M10 19V5M15 19v-6M20 19V9",
  left: "M14 6.500 8.500 12 14 17.500",
  right: "M10 6.500 15.500 12 10 17.500",
  trash: "M5 7h14M10 7V4.500h4V7M7 7l.8 12.500h8.400L17 7M10.200 10.500v5.500M13.800 10.500v5.500",
  more: "M5 12h14M13 6l6 6-6 6",
  tool: "M14.500 6.500a4 4 0 0 1 5-1l-2.700 2.700 1 1.800 1.800 1L22.200 8.300M14.500 6.500a4 4 0 0 0-.6 4.400L5 19.500l1.500 1.500 8.800-8.900a4 4 0 0 0 4.400-.6",
  thought: "M12 5c-4 0-7 2.500-7 6 0 2 1 3.700 2.700 4.800L7 19l3.600-1.700c.5 0 .9.100 1.400.1 4 0 7-2.600 7-6.200S16 5 12 5z",
  picture: "M4 5h16v14H4zM4 16l5-5 4 4 2.500-2.500L20 17M15.500 9h.01",
  microphone: "M12 4a2.500 2.500 0 0 0-2.500 2.500V11a2.500 2.500 0 0 0 5 0V6.500A2.500 2.500 0 0 0 12 4zM6.500 11a5.500 5.500 0 0 0 11 0M12 16.500V20M9 20h6",
  search: "M10.500 4.500a6 6 0 1 1 0 12a6 6 0 0 1 0-12zM15 15l5 5",
  scales: "M12 4.500v14M8 18.500h8M5 7.500h14M5 7.500 2.500 13.500h5zM19 7.500l-2.500 6h5z",
  alert: "M12 5 3.500 19h17zM12 10.500v4M12 16.700h.01",
};

const SVG = "http://www.w3.org/2000/svg";

/** An icon by its name. @returns {SVGElement} */
export function icon(/** @type {keyof typeof PATHS} */ name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("class", `icon icon-${name}`);
  svg.setAttribute("aria-hidden", "true");
  for (const line of PATHS[name].split("|")) {
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("d", line);
    svg.append(path);
  }
  return svg;
}

/** Gives the elements of the document with a `data-icon` their icons, and those with an icon alone a title. */
export function drawIcons() {
  for (const each of document.querySelectorAll("[data-icon]")) {
    each.prepend(icon(/** @type {any} */ (each).dataset.icon));
    const label = each.getAttribute("aria-label");
    if (label && !each.hasAttribute("title")) each.setAttribute("title", label);
  }
}
