//! hob: a home-server assistant daemon that computes each repeated prompt token once.
//!
//! A house asks the same long prompt all day: policy, tools, documents; only the last line is new. hob keeps the K/V of what
//! repeats (what the model computed of each token) in the cells of one llama.cpp context, lets every conversation stand on it
//! without a copy, and tells its owner what that saved. What loses its cells goes to the tiers below them, RAM and disk, and
//! comes back from there. It caches computation, never answers.
//!
//! # The rooms
//!
//! | room | what it knows | what it does not |
//! |---|---|---|
//! | [`request`] | what a client asks and gets back, in neutral words | wire formats, sequence ids |
//! | [`config`] | TOML → checked values, profiles' files | what they are used for |
//! | [`http`] | sockets, who may ask, limits, routes, dialects; bytes ↔ `Request` and `Event` | tokens, cells |
//! | [`prompt`] | order of sections, what changes in them, template, control tokens, tokens and cuts | HTTP, the engine's state |
//! | [`scheduler`] | who is admitted, who joins a step, when an answer ends | JSON, SQL, files |
//! | [`kv`] | the prefix tree, ids and cells as numbers, the tiers' index; what is shared, saved and given up | requests, time |
//! | [`engine`] | three traits, what answers obey and who reads them; `llama` over llama.cpp, `simulated` for tests | all of the above |
//! | [`sources`] | commands, files and loopback addresses, read in the background | what their values are for |
//! | [`snapshots`] | K/V as files: written, verified, swept, on a thread of their own | which are worth it |
//! | [`telemetry`] | one row a request in SQLite with its plan, queries over them, why a request cost what it cost | prompt text |
//! | [`private`] | folders and files of this user alone, each file whole or not there | what stands in them |
//! | [`commands`] | what `hob` does and prints | how arguments are read: `main.rs` |
//! | [`daemon`] | builds the rooms in order, connects them, stops them in reverse | anything else |
//!
//! # One request's walk
//!
//! 1. `http::listener` takes the connection, `http::access` says who asks and whether they may, and a dialect (`http::openai`,
//!    `http::responses`, `http::ollama`, `http::anthropic`) parses the body under a size limit to a [`request::Request`]. Bad input ends here: a 4xx that names the field.
//! 2. `prompt::Planner`, on its own thread, moves what changes behind what stays (where the layout mode lets it), puts
//!    the sections in order, renders them with the model's template and turns the text into [`request::TokenPrompt`]: tokens,
//!    and cuts where sections end; and what the answer must obey and who reads it (`prompt::answers`). Which tokens are whose (`prompt::regions`) goes along for `hob why`. Too long for the
//!    context: 400 with both numbers.
//! 3. [`scheduler::SchedulerHandle::submit`] queues it, or says when to come again: 503. From here HTTP only awaits events.
//!    `scheduler::queue` says who of those that wait is next, and whose place it may take.
//! 4. Admission (`scheduler::admission`): [`kv::Cache::stand`] finds the longest held prefix, locks it, takes a sequence id, makes it
//!    an owner of the prefix's cells and promises cells for the rest. A request whose next tokens another one is computing
//!    follows that one instead of computing them again. A pin that is cold is computed for the house first. What the tiers
//!    hold beyond the cells is restored before the rest is computed, one piece a step, if that is faster
//!    (`scheduler::restoring`).
//! 5. Each step, under one set of adapters (`scheduler::turns`, `scheduler::batch`): one token for every decoding sequence, then
//!    whole prefill chunks under the budget: the highest class first, clients that had their share after the others
//!    (`scheduler::shares`), short prompts before long ones.
//!    One answer that has the step to itself brings a draft of what it is likely to say next, where measured times say that it
//!    pays (`scheduler::draft`, `scheduler::drafting`); what the model does not say is taken back at once.
//! 6. After a step new prefixes are published in the tree, tokens are sampled, text leaves as [`request::Event`]s
//!    (`scheduler::emission` holds back half characters and possible stop texts). A closed receiver cancels between steps.
//! 7. The end: what was computed stays in the tree as an evictable leaf and is copied below the cells beside later steps
//!    (`scheduler::saving`, [`kv::tiers`]). The client gets usage and timings, [`telemetry`] gets a row.
//!
//! # The threads: each owns its state
//!
//! | thread | owns | inbox |
//! |---|---|---|
//! | main and tokio's workers | sockets | — |
//! | `hob-planner` | prepared templates, tokens of stretches, profiles' heads, what changes in clients' prompts | bounded; full = 503 |
//! | `hob-scheduler` | llama context, tree, budget, tiers and their bytes in RAM, queue, running sequences | bounded; full = 503 |
//! | `hob-live` | what profiles' live entries last said | — |
//! | `hob-snapshots` | the folder of K/V files; hashing and verifying | bounded; full = the scheduler does without |
//! | `hob-telemetry` | the SQLite connection | bounded; full = drop and count |
//!
//! # Invariants
//!
//! - Reuse is exact: the same tokens from position 0, computed by this very context, or by one like it
//!   and saved bit for bit. Similar text is not a hit.
//! - A hit is at most all but the last prompt token: one must be computed to have logits.
//! - Every cell has one state: `free + evictable + pinned + held = total`; what is promised is there:
//!   `reserved ≤ free + evictable`. Below them no tier holds more bytes than its budget, counted before they are allocated
//!   (but for one segment on its way to disk, and for profiles on a disk whose budget was made smaller than they are), and what
//!   stands behind a saved prefix is held no longer than that ([`kv::Tiers`]). Checked after every operation where debug
//!   assertions are on ([`kv::Cache::check`]).
//! - What one set of adapters and scales computed is used under that set alone, whoever asks: each has roots of its own, in the cells
//!   and in every tier ([`kv::Holder`]). A step is computed under one set (`scheduler::turns`).
//! - A leaf's sequence id owns the cells of its whole path; inner nodes have none.
//! - A private prefix is matched by its owner alone; only configured pins, and those asked for on this machine as public, are the
//!   whole house's.
//! - Where a prompt is cut into chunks depends on positions only, never on load or time. Equal tokens cut at equal places have
//!   equal K/V and logits bit for bit as long as nothing else moves the order in which floats are added. On llama.cpp's CPU
//!   backend three things do (measured, `tests/it/real/`): the company in a batch with f16 K/V, other sequences' cells between one's
//!   own (attention adds in cell order, in tiles of 64 from 64 rows on), and the company for weights whose kernel treats rows in
//!   groups (Q4_K_M; not Q4_1). These are roundings; what is reused is the same in all of them.
//! - An older answer is never failed for want of cells: the newest of the lowest class is parked and goes on later.
//! - Nobody starves: one step in eight that compute a prompt, and one place after eight others, is for who has waited
//!   longest.
//! - Nothing is truncated silently. Prompt text is in no log and no table. What changes of it, what `hob pin add` was given, and
//!   the token ids beside saved K/V lie in files for hob's user alone.
//! - The middle (`prompt`'s parts but for `asked`, `kept`, `store`, `moment` and `pinned_day`, all of `kv`, and of the
//!   scheduler `batch`, `turns`, `shares`, `queue`, `draft` and `emission`) does no IO and reads no clock; each thread owns its
//!   state; no mutex on the way of a token.
//! - Only `engine::llama` names llama.cpp, only `telemetry` SQLite, only `http` hyper and axum. `tests/it/tidy.rs` enforces it.

pub mod commands;
pub mod config;
pub mod daemon;
pub mod engine;
pub mod http;
pub mod kv;
pub mod private;
pub mod prompt;
pub mod request;
pub mod scheduler;
pub mod snapshots;
pub mod sources;
pub mod telemetry;
