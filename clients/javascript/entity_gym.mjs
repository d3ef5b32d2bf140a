// Offers worlds to train in (`offerWorlds`), and asks a policy server for actions (`connectPolicy`), by the protocol of
// docs/protocol.md. Needs Node 18 or newer, and nothing else.

import net from "node:net";
import { Console } from "node:console";

export const PROTOCOL = 1;

const HEADER_BYTES = 4;
const MAX_MESSAGE_BYTES = 16 * 2 ** 20;

/** A message as it travels: 4 bytes that say how long, big-endian, then JSON in UTF-8. */
export function encode(message) {
  const body = Buffer.from(JSON.stringify(message), "utf8");
  const header = Buffer.alloc(HEADER_BYTES);
  header.writeUInt32BE(body.length);
  return Buffer.concat([header, body]);
}

/** Cuts a stream of bytes into messages. */
export class MessageReader {
  #limit;
  #received = Buffer.alloc(0);

  constructor(limit = MAX_MESSAGE_BYTES) {
    this.#limit = limit;
  }

  /** The messages that are complete with this piece; throws for what is none, or is longer than the limit. */
  push(piece) {
    this.#received = this.#received.length ? Buffer.concat([this.#received, piece]) : piece;
    const messages = [];
    let start = 0;
    while (this.#received.length - start >= HEADER_BYTES) {
      const length = this.#received.readUInt32BE(start);
      if (length > this.#limit) throw new Error(`a message of ${length} bytes; at most ${this.#limit} are read`);
      const end = start + HEADER_BYTES + length;
      if (this.#received.length < end) break;
      messages.push(JSON.parse(this.#received.toString("utf8", start + HEADER_BYTES, end)));
      start = end;
    }
    this.#received = this.#received.subarray(start);
    return messages;
  }
}

/** A source of random numbers in [0, 1) that is the same for the same seed (mulberry32); `Math.random` takes no seed. */
export function seededRandom(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/**
 * Offer worlds to a trainer until it is done.
 *
 * By default through standard input and output, where a trainer that started this program listens; from this call on,
 * `console.log` then goes to standard error, and nothing may have been printed before it. Over TCP where
 * `connect` says "host:port", for a trainer with env.kwargs.listen=host:port.
 *
 * @param {object} offer
 * @param {string} offer.name what messages call the worlds
 * @param {object} offer.spaces entities, global features and actions; see docs/protocol.md
 * @param {() => World} offer.makeWorld makes one world: `reset(seed, info)` and `act(actions)` return an observation, or a
 *   promise of one; `save()` returns anything that JSON can hold, and `load(state)` continues from it (both or neither)
 * @param {string[]} [offer.parameters] names of what `info` of a reset may tell
 * @param {string} [offer.connect] "host:port"
 * @returns {Promise<void>} fulfilled when the trainer has hung up
 */
export async function offerWorlds({ name, spaces, makeWorld, parameters = [], connect }) {
  const { input, output } = connect ? await openSocket(connect) : openStandardStreams();
  const worlds = new Map([[0, makeWorld()]]);
  const canSave = ["save", "load"].every((method) => typeof worlds.get(0)[method] === "function");

  let unsent = [];
  const flush = (done) => {
    if (unsent.length) output.write(Buffer.concat(unsent), done);
    unsent = [];
  };
  const send = (message) => {
    if (unsent.push(encode(message)) === 1) setImmediate(() => flush()); // the answers of many worlds leave together
  };

  const answer = async (message) => {
    if (message.type === "hello") {
      if (message.protocol !== PROTOCOL) throw new Error(`the trainer speaks version ${message.protocol} of the protocol`);
      return { type: "worlds", protocol: PROTOCOL, name, spaces, parameters, can_save: canSave };
    }
    if (!worlds.has(message.env)) worlds.set(message.env, makeWorld());
    const world = worlds.get(message.env);
    switch (message.type) {
      case "reset":
        return { ...(await world.reset(message.seed, message.info ?? {})), type: "observation", env: message.env };
      case "act":
        return { ...(await world.act(message.actions)), type: "observation", env: message.env };
      case "save":
        return { type: "saved", env: message.env, state: await world.save() };
      case "load":
        await world.load(message.state);
        return { type: "loaded", env: message.env };
      default:
        throw new Error(`the trainer sent ${message.type}, which this client does not know`);
    }
  };

  await new Promise((resolve, reject) => {
    const reader = new MessageReader();
    const fail = (error, env) => {
      send({ type: "error", message: String(error?.stack ?? error), ...(env === undefined ? {} : { env }) });
      flush(() => reject(error)); // which may end the process
    };
    input.on("data", (piece) => {
      let messages;
      try {
        messages = reader.push(piece);
      } catch (error) {
        return fail(error);
      }
      for (const message of messages) {
        if (message.type === "close") return resolve();
        answer(message).then(send, (error) => fail(error, message.env));
      }
    });
    input.on("end", resolve);
    input.on("error", resolve);
    output.on("error", resolve);
  });
  input.destroy();
  if (connect) output.end();
}

/**
 * Connect to a policy server (`python -m enn_ppo.serve checkpoint=...`).
 *
 * @param {object} options
 * @param {number} options.port
 * @param {string} [options.host]
 * @param {object} [options.spaces] of the worlds that it will be shown; without them, those that it was trained in
 * @param {string} [options.token] the secret that the server was started with (`token=...`), if there is one
 * @returns {Promise<PolicyClient>}
 */
export async function connectPolicy({ port, host = "127.0.0.1", spaces, token }) {
  const { input, output } = await openSocket(`${host}:${port}`);
  const client = new PolicyClient(input, output);
  await client.greet(spaces, token);
  return client;
}

/** A connection to a policy server. Questions may overlap: each promise is of its own answer. */
export class PolicyClient {
  #output;
  #waiting = new Map();
  #asked = 0;
  #greeted;

  constructor(input, output) {
    this.#output = output;
    const reader = new MessageReader();
    const fail = (error) => {
      for (const { reject } of this.#waiting.values()) reject(error);
      this.#waiting.clear();
      output.destroy();
    };
    input.on("data", (piece) => {
      try {
        for (const message of reader.push(piece)) this.#receive(message, fail);
      } catch (error) {
        fail(error);
      }
    });
    input.on("close", () => fail(new Error("the policy server has hung up")));
    input.on("error", fail);
  }

  #receive(message, fail) {
    if (message.type === "error") return fail(new Error(`the policy server says: ${message.message}`));
    const key = { policy: "hello", health: "health" }[message.type] ?? message.id;
    this.#waiting.get(key)?.resolve(message);
    this.#waiting.delete(key);
  }

  #ask(key, message) {
    return new Promise((resolve, reject) => {
      if (this.#output.destroyed) return reject(new Error("the connection to the policy server is closed"));
      this.#waiting.set(key, { resolve, reject });
      this.#output.write(encode(message));
    });
  }

  async greet(spaces, token) {
    const greeting = { type: "hello", protocol: PROTOCOL, ...(token ? { token } : {}), ...(spaces ? { spaces } : {}) };
    this.#greeted = await this.#ask("hello", greeting);
  }

  /** What the server said of itself: `checkpoint`, `spaces` and `news` (what is not as it was in training). */
  get policy() {
    return this.#greeted;
  }

  /**
   * What to do.
   *
   * @param {object} observation as worlds return it
   * @param {object} [options]
   * @param {boolean} [options.greedy] the likeliest actions rather than drawn ones; without it, as the server was told
   * @param {boolean} [options.begins] an episode begins, so a policy that remembers forgets what this connection has shown
   * @param {boolean} [options.value] also how much reward the policy expects
   * @param {boolean} [options.probabilities] also how likely it was to take each choice
   * @returns {Promise<{actions: object, value?: number, probabilities?: object}>}
   */
  act(observation, options = {}) {
    const id = this.#asked++;
    return this.#ask(id, { type: "act", id, observation, ...options });
  }

  /** How the server is: `connected` clients, `decisions` so far, and more. Also keeps the connection of a client that is silent. */
  health() {
    return this.#ask("health", { type: "health" });
  }

  close() {
    this.#output.end();
  }
}

function openStandardStreams() {
  // Messages go through standard output, so what people print must not.
  globalThis.console = new Console(process.stderr);
  return { input: process.stdin, output: process.stdout };
}

function openSocket(address) {
  const at = address.lastIndexOf(":");
  return new Promise((resolve, reject) => {
    const socket = net.connect({ host: address.slice(0, at), port: Number(address.slice(at + 1)), noDelay: true });
    socket.once("error", reject);
    socket.once("connect", () => {
      socket.off("error", reject);
      resolve({ input: socket, output: socket });
    });
  });
}
