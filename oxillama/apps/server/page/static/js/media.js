/**
 * Pictures and sounds of messages. They go to the server as data URLs, and are shown on canvases: nothing is loaded by
 * its address, so that the policy of the page allows none.
 */

import { el } from "./dom.js";
import { icon } from "./icons.js";

/** Pixels along the longer side of a picture that is drawn anew, and of a thumbnail. */
const SIDE = 2048;
const THUMBNAIL = 192;
/** Bytes from which a file is made smaller. */
const LARGE = 2_000_000;
/** Samples a second of what is recorded: those that models take. */
const RATE = 16_000;
/** Seconds of a recording. */
const LONGEST = 600;

const KEPT = { image: /^image\/(png|jpeg|webp|gif|bmp)$/, audio: /^audio\/(x-)?(wav|wave|vnd\.wave|mpeg|mp3|flac|ogg|aiff)$/ };
const WORDS = { image: "pictures", audio: "sounds" };

/** A file that cannot be put into a message. */
export class AttachmentError extends Error {}

/**
 * @typedef {object} Medium
 * @property {"image" | "audio"} kind
 * @property {string} name
 * @property {string} url with the data in base64.
 */

/** What a file is, by its type: "image", "audio", or "" for neither. SVG is text. @returns {"image" | "audio" | ""} */
export function kindOf(/** @type {Blob} */ file) {
  const kind = file.type.startsWith("image/svg") ? "" : file.type.split("/")[0];
  return kind === "image" || kind === "audio" ? kind : "";
}

/**
 * A file as a medium of a message.
 * @param {Blob} file
 * @param {string} name
 * @param {string[]} takes what the model takes.
 * @returns {Promise<Medium>}
 */
export async function medium(file, name, takes) {
  const kind = /** @type {"image" | "audio"} */ (kindOf(file));
  if (!takes.includes(kind)) throw new AttachmentError(`${name} was not attached: the model takes no ${WORDS[kind]}.`);
  try {
    const isKept = KEPT[kind].test(file.type) && file.size <= (kind === "image" ? LARGE : 4 * LARGE);
    const data = isKept ? file : await (kind === "image" ? redrawn(file) : asWav(await file.arrayBuffer()));
    if (isKept && kind === "image") (await createImageBitmap(file)).close(); // what the browser cannot read is refused
    return { kind, name, url: await dataUrl(data) };
  } catch (error) {
    throw new AttachmentError(`${name} cannot be read as one of the ${WORDS[kind]}. ${error instanceof Error ? error.message : error}`);
  }
}

/** A picture the right way up, at most `SIDE` pixels along a side. @returns {Promise<Blob>} */
async function redrawn(/** @type {Blob} */ file) {
  const canvas = await drawn(file, SIDE);
  const made = await new Promise((/** @type {(blob: Blob | null) => void} */ done) => canvas.toBlob(done, "image/jpeg", 0.92));
  if (!made) throw new Error("It has no pixels.");
  return made;
}

/** A canvas with a picture on white, at most ``side`` pixels along a side. @returns {Promise<HTMLCanvasElement>} */
async function drawn(/** @type {Blob} */ file, /** @type {number} */ side) {
  const bitmap = await createImageBitmap(file);
  const scale = Math.min(1, side / Math.max(bitmap.width, bitmap.height));
  const canvas = el("canvas", { width: Math.max(1, Math.round(bitmap.width * scale)), height: Math.max(1, Math.round(bitmap.height * scale)) });
  const context = canvas.getContext("2d");
  context.fillStyle = "#fff"; // as the server lays pictures on white
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  return canvas;
}

/** A sound as WAV with one channel of 16 bits. @returns {Promise<Blob>} */
export async function asWav(/** @type {ArrayBuffer} */ data) {
  const context = new OfflineAudioContext(1, 1, RATE);
  const sound = await context.decodeAudioData(data); // which resamples
  const samples = new Float32Array(sound.length);
  for (let i = 0; i < sound.numberOfChannels; i += 1) sound.getChannelData(i).forEach((value, at) => (samples[at] += value / sound.numberOfChannels));
  return wavOf(samples);
}

/** @returns {Blob} */
export function wavOf(/** @type {Float32Array} */ samples) {
  const view = new DataView(new ArrayBuffer(44 + 2 * samples.length));
  const word = (/** @type {number} */ at, /** @type {string} */ text) => [...text].forEach((letter, i) => view.setUint8(at + i, letter.charCodeAt(0)));
  word(0, "RIFF");
  view.setUint32(4, 36 + 2 * samples.length, true);
  word(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true); // integers
  view.setUint16(22, 1, true); // channel
  view.setUint32(24, RATE, true);
  view.setUint32(28, 2 * RATE, true);
  view.setUint16(32, 2, true);
  view.setUint16(34, 16, true);
  word(36, "data");
  view.setUint32(40, 2 * samples.length, true);
  samples.forEach((value, i) => view.setInt16(44 + 2 * i, Math.round(Math.max(-1, Math.min(1, value)) * 32767), true));
  return new Blob([view], { type: "audio/wav" });
}

/** @returns {Promise<string>} */
function dataUrl(/** @type {Blob} */ data) {
  return new Promise((done, failed) => {
    const reader = new FileReader();
    reader.onload = () => done(/** @type {string} */ (reader.result));
    reader.onerror = () => failed(reader.error);
    reader.readAsDataURL(data);
  });
}

/** The data of a URL that `medium` has made. @returns {Blob} */
export function blobOf(/** @type {string} */ url) {
  const [head, data] = url.split(",", 2);
  const type = /^data:([^;]*)/.exec(head)?.[1] ?? "";
  return new Blob([Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0))], { type });
}

/** Parts of a message in OpenAI's form. @returns {object[]} */
export function partsOf(/** @type {Medium[]} */ media) {
  return media.map(({ kind, url }) =>
    kind === "image" ? { type: "image_url", image_url: { url } } : { type: "input_audio", input_audio: { data: url.split(",", 2)[1] } },
  );
}

/** A medium as it is shown: a picture small, a sound by its name. @returns {HTMLElement} */
export function mediumView(/** @type {Medium} */ item) {
  if (item.kind === "audio") return el("span", { class: "medium sound", title: item.name }, icon("microphone"), item.name);
  const frame = el("span", { class: "medium picture", role: "img", "aria-label": item.name, title: item.name });
  drawn(blobOf(item.url), THUMBNAIL).then(
    (canvas) => frame.append(canvas),
    () => frame.append(item.name),
  );
  return frame;
}

/** A button with a medium, which removes the medium. @returns {HTMLElement} */
export function mediumChip(/** @type {Medium} */ item, /** @type {() => void} */ remove) {
  const label = `Remove ${item.name}`;
  return el("button", { type: "button", class: "chip file", "aria-label": label, title: label, onclick: remove }, mediumView(item), icon("close"));
}

/** Whether this page may record: browsers allow that on secure pages alone. */
export function mayRecord() {
  return window.isSecureContext && Boolean(navigator.mediaDevices?.getUserMedia) && typeof MediaRecorder === "function";
}

/**
 * Records the microphone.
 * @returns {Promise<{stop: () => void, sound: Promise<Blob>}>} `sound` comes when it is stopped, or too long.
 */
export async function record() {
  const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
  const recorder = new MediaRecorder(stream);
  /** @type {Blob[]} */
  const parts = [];
  recorder.ondataavailable = ({ data }) => parts.push(data);
  const sound = new Promise((/** @type {(blob: Blob) => void} */ done, failed) => {
    recorder.onerror = () => failed(new Error("The recording has failed."));
    recorder.onstop = () => {
      for (const track of stream.getTracks()) track.stop();
      new Blob(parts).arrayBuffer().then(asWav).then(done, failed);
    };
  });
  const stop = () => recorder.state !== "inactive" && recorder.stop();
  setTimeout(stop, 1000 * LONGEST);
  recorder.start();
  return { stop, sound };
}
