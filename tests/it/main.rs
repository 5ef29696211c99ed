//! The real binary between a client and an upstream that the tests play byte by byte.
#![expect(
    clippy::disallowed_methods,
    reason = "tests spawn the other sides of a connection, and read bodies that they made"
)]
#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a panic is a test's answer"
)]
#![expect(clippy::print_stderr, reason = "what a failed process wrote is shown")]

mod admin; // access to the paths below /abridge/
mod bound; // thinking that is signed over all messages before it
mod calibration; // tokens as billed, and the factor that a conversation keeps
mod cancellation; // a client that disconnects cancels the upstream request
mod chaos; // everything misbehaves together
mod cold_passes; // passes after a pause in which the prompt cache has expired
mod compaction; // conversations that clients ask to have compacted
mod compress; // gateways
mod config; // settings, and the commands that need no upstream
mod controls; // the tool by which the model controls clearing
mod damage; // a store that is damaged, in use, or cannot be made
mod demo; // `abridge demo`
mod dialects; // what holds in every dialect
mod docs; // the commands in the documents
mod doctor; // `abridge doctor`: checks, faults and fixes
mod edits; // an edited exchange on both sides
mod events; // GET /abridge/events, and who may read them
mod failures; // failures of the upstream are reported to the client
mod fair_shares; // one caller leaves places and memory to others, and clients leave some to operators
mod faults; // rare faults of an upstream, a disk and a kernel
mod forms;
mod full_disk; // a full disk, and recovery from it
mod gemini; // requests of Gemini's API
mod handler_properties; // what holds whatever handlers answer
mod handlers; // programs of users that say what takes the place of a text
mod header_settings; // settings that become a header are one line
mod history_elsewhere; // requests that have the newest messages only
mod hostile; // invalid and extreme request bodies
mod hosts; // Claude at Vertex AI and Bedrock, and Azure's deployments
mod in_band; // calls of the tool that abridge adds
mod injection; // texts that imitate those of abridge
mod inspect; // `abridge status`, `diff` and `show`, and what is kept for them
mod judge; // any proxy as a policy of `abridge simulate`
mod keep_alive; // calls that keep a prompt cache
mod known_clients; // [clients]: tokens, certificates, names
mod lanes; // conversations on the page: names, costs, origins of stored texts
mod late_results; // tool results that arrive after later messages
mod ledger; // what answers cost, and would have cost
mod limits; // every limit, at the limit
mod listen; // addresses, sockets, versions of HTTP
mod manual_summary; // POST /abridge/summarize, and `abridge summarize`
mod mcp; // the tools of POST /abridge/mcp
mod media; // images and files in tool results
mod memory; // memory use, idle and under load
mod messages; // keys, versions and thinking of Anthropic Messages
mod metrics; // GET /abridge/metrics, and the log line of a request
mod models; // `abridge models`
mod once; // editing is idempotent
mod origins; // requests of pages in a browser
mod otel; // traces and metrics for a collector
mod passthrough; // unedited requests and answers keep their bytes
mod properties; // properties of patching, on generated conversations
mod recall; // reading originals back
mod recording; // `serve --record`, and replaying what it wrote
mod reductions; // properties of reducing edits, on generated conversations
mod regrets; // calls that ask for something cleared
mod reload; // settings reloaded at SIGHUP
mod responses; // paths of OpenAI Responses
mod responses_streams; // refusals in the first events of a stream
mod rewrite; // what `abridge rewrite` prints is what `abridge serve` sends
mod rewrite_path; // POST /abridge/rewrite
mod run; // `abridge run`
mod run_left; // what `abridge run` leaves, and where it sends requests
mod second_try; // a second attempt of a refused request
mod secrets; // keys and contents that must never be logged
mod service; // `abridge service`
mod setup; // `abridge setup`
mod shutdown; // drain, and the second signal
mod simulate; // `abridge simulate`
mod small_windows; // whole sessions at small context windows
mod smuggling; // requests that could be read in two ways
mod start; // startup output and the probe
mod store_crash; // the store after a kill
mod store_format; // files of earlier versions
mod streaming; // chunk by chunk, with backpressure
mod summaries; // summary calls, successful and failed
mod summarised; // properties of summaries, on generated conversations
mod support; // the test harness
mod tap; // usage and finish reason, read beside the answer
mod targets; // the client's path and the upstream's
mod tenants; // separation of callers
mod tls; // certificates on both sides
mod token_counts; // counts of recorded texts, compared with tiktoken-rs
mod upstream_proxy; // HTTPS_PROXY, HTTP_PROXY, NO_PROXY
mod upstreams; // several upstreams behind one abridge
mod webhook; // events posted to a webhook
mod windows; // context windows learned from the upstream
mod wire; // the test upstream, checked with an independent client
