// The clients of service_clients.py: each has a connection of its own, a watch of its job, and asks for it each second.
// Reads {address, seconds, jobs: [[token, name], …]} from stdin; writes {latencies: [ms, …], failures, cpu_ms}, the CPU
// being that of the time in which they ask. Node's own HTTP/2 and messages made by hand, since clients share the cores
// with what is measured.
import http2 from "node:http2";
import { readFileSync } from "node:fs";

const { address, seconds, jobs } = JSON.parse(readFileSync(0, "utf8"));
const SERVICE = "/augment.v1.AugmentService/";
const latencies = [], failures = [];
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// A request with the field 1, name, as gRPC frames it.
function message(name) {
  const text = Buffer.from(name);
  const head = Buffer.from([0, 0, 0, 0, text.length + 2, 0x0a, text.length]);
  return Buffer.concat([head, text]);
}

// Calls; resolves with the stream at its first message, and with the status at its end.
function call(session, method, token, name) {
  const headers = { ":method": "POST", ":path": SERVICE + method, "content-type": "application/grpc", te: "trailers" };
  const stream = session.request({ ...headers, authorization: `Bearer ${token}` });
  const first = new Promise((resolve) => stream.once("data", resolve));
  const status = new Promise((resolve) => {
    let told = "no status";
    stream.on("trailers", (trailers) => (told = String(trailers["grpc-status"])));
    stream.on("response", (answered) => (told = String(answered["grpc-status"] ?? told)));
    stream.on("error", (error) => (told = error.message));
    stream.on("close", () => resolve(told));
  });
  stream.resume();
  stream.end(message(name));
  return { first, status };
}

let begun = 0, go;
const all = new Promise((resolve) => (go = resolve));

async function client(token, name) {
  const session = http2.connect(`http://${address}`);
  session.on("error", (error) => failures.push(error.message));
  const watch = call(session, "WatchJob", token, name);
  let ended = "";
  watch.status.then((status) => (ended = `a watch ended with ${status}`));
  await Promise.race([watch.first, watch.status]);
  if (++begun === jobs.length) go();
  await all;
  await pause(1000 * Math.random());
  const end = performance.now() + 1000 * seconds;
  for (let began; (began = performance.now()) < end; ) {
    const status = await call(session, "GetJob", token, name).status;
    latencies.push(performance.now() - began);
    if (status !== "0") failures.push(`GetJob: ${status}`);
    await pause(Math.max(0, 1000 - (performance.now() - began)));
  }
  if (ended) failures.push(ended);
  session.destroy();
}

const clients = [];
for (const [token, name] of jobs) {
  clients.push(client(token, name));
  await pause(5); // connections begin one after the other
}
await all;
process.stdout.write("asking\n");
const before = process.cpuUsage();
await Promise.all(clients);
const { user, system } = process.cpuUsage(before);
process.stdout.write(JSON.stringify({ latencies, failures, cpu_ms: (user + system) / 1000 }) + "\n");
