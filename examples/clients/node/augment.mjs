// Have a server augment a trace: node augment.mjs HOST:PORT TRACE [OUT]
//
// Straight from the .proto files, without generated code. Set AUGMENT_TOKEN if the server wants a token.
import { createHash } from "node:crypto";
import { createReadStream, createWriteStream, renameSync } from "node:fs";
import { basename, join } from "node:path";
import { fileURLToPath } from "node:url";
import grpc from "@grpc/grpc-js";
import protoLoader from "@grpc/proto-loader";

const protos = fileURLToPath(new URL("../../../proto", import.meta.url));
const definition = protoLoader.loadSync("augment/v1/service.proto", {
  includeDirs: [protos],
  keepCase: true, // names as in the .proto files
  longs: String, // 64-bit integers keep every digit
  enums: String,
  oneofs: true,
});
const api = grpc.loadPackageDefinition(definition).augment.v1;

const [address, trace, out = "."] = process.argv.slice(2);
const client = new api.AugmentService(address, grpc.credentials.createInsecure());
const metadata = new grpc.Metadata();
if (process.env.AUGMENT_TOKEN) metadata.set("authorization", `Bearer ${process.env.AUGMENT_TOKEN}`);

/** A call with one answer, as a promise. */
const ask = (method, request) =>
  new Promise((resolve, reject) =>
    client[method](request, metadata, (error, answer) => (error ? reject(error) : resolve(answer))),
  );

/** Send the trace; the upload's name. Waits while the server is busy, so that little of it is in memory. */
async function upload(path) {
  let done;
  const answered = new Promise((resolve, reject) => {
    done = client.UploadTrace(metadata, (error, answer) => (error ? reject(error) : resolve(answer.upload.name)));
  });
  answered.catch(() => {}); // told by the last line
  const send = (message) => done.write(message) || new Promise((resolve) => done.once("drain", resolve));
  await send({ start: { file_name: basename(path) } });
  for await (const chunk of createReadStream(path, { highWaterMark: 1 << 20 })) {
    await Promise.race([send({ chunk }), answered]);
  }
  done.write({ chunk: Buffer.alloc(0), finish: true });
  done.end();
  return answered;
}

/** Follow a job to its end; the job. */
async function follow(name) {
  let job;
  for await (const answer of client.WatchJob({ name }, metadata)) {
    job = answer.job;
    console.error(job.state, job.progress?.stage ?? "");
  }
  if (job.state !== "STATE_SUCCEEDED") throw new Error(job.error?.message || job.state);
  return job;
}

/** Write an artifact into the folder: under its name once it is whole and what the server says it is. */
async function fetch(artifact) {
  const path = join(out, basename(artifact.file_name));
  const hash = createHash("sha256");
  const file = createWriteStream(`${path}.part`);
  for await (const { chunk } of client.ReadArtifact({ name: artifact.name }, metadata)) {
    if (!chunk?.length) continue;
    hash.update(chunk);
    if (!file.write(chunk)) await new Promise((resolve) => file.once("drain", resolve));
  }
  await new Promise((resolve) => file.end(resolve));
  if (hash.digest("hex") !== artifact.sha256) throw new Error(`${artifact.file_name} arrived damaged`);
  renameSync(`${path}.part`, path);
  console.log(path);
}

try {
  const spec = { augment: { input: { upload: await upload(trace) }, formats: ["chrome"] } };
  const { job } = await ask("CreateJob", { spec, request_id: crypto.randomUUID() });
  const done = await follow(job.name);
  for (const artifact of done.artifacts) await fetch(artifact);
} catch (error) {
  console.error(error.details ?? error.message);
  process.exitCode = 1;
} finally {
  client.close();
}
