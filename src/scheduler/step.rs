//! The loop: receive, drop who is gone, admit, compute one step, give out what it brought.
//!
//! Everything the scheduler owns is a plain field here. The clock is read here and by those who act on it (`admission`, `saving`,
//! `restoring`, `pins`); what decides, `batch`, `emission` and all of `kv`, is told what it needs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tracing::{debug, error, info, warn};

use super::batch::{self, Part};
use super::draft::Costs;
use super::emission::Emitted;
use super::pins::Pins;
use super::restoring::Reads;
use super::saving::Savings;
use super::sequence::{Running, Sequence, Work};
use super::shares::Shares;
use super::turns::Turns;
use super::{Command, Recorder, Status};
use crate::engine::logprobs::logprobs;
use crate::engine::{AnswerRules, Batch, BatchToken, DecodeError, Engine, Vocab};
use crate::kv::learned::Learned;
use crate::kv::value::Reuse;
use crate::kv::{Cache, EvictionCause, Kept};
use crate::request::{Candidate, Finish, Priority, Token, TokenLogprob};
use crate::telemetry::{CellsRecord, EvictionRecord, Record};

/// How long the loop waits when sequences run but none can go on, because their clients do not read.
const STALLED_WAIT: Duration = Duration::from_millis(20);

/// Samples of the cells are taken at most this often while requests run.
const SAMPLE_EVERY: Duration = Duration::from_secs(1);

/// What nobody used for this long leaves the cells, if it is saved: every sequence pays for idle cells in every step, 26 to 30 %
/// for 6,000 of them on a small model (measured), and bringing a conversation back costs milliseconds. People who talk on do so
/// within a few minutes. It is looked for once in this time, so that it may take twice as long.
const IDLE: Duration = Duration::from_secs(5 * 60);

/// See the module's head. `E::Sampler` lives in each answer.
pub(super) struct Scheduler<E: Engine> {
    pub(super) engine: E,
    pub(super) vocab: Arc<dyn Vocab>,
    pub(super) cache: Cache,
    /// In the order of admission: the last one is the newest.
    pub(super) running: Vec<Running<E::Sampler>>,
    /// New ones and parked ones; `queue` says who is next.
    pub(super) waiting: Vec<Sequence<E::Sampler>>,
    pub(super) shares: Shares,
    /// So many were let in since the one that waits longest was passed over first.
    pub(super) n_passed: usize,
    pub(super) pins: Pins,
    pub(super) savings: Savings,
    pub(super) reads: Reads,
    pub(super) learned: Learned,
    /// When idle cells were last looked for.
    pub(super) looked_idle: Instant,
    /// Answers in progress at once.
    pub(super) parallel: usize,
    pub(super) n_waiting: Arc<AtomicUsize>,
    pub(super) status: watch::Sender<Status>,
    pub(super) record: Recorder,
    pub(super) speed: Speed,
    /// What drafts cost; `None`: none are made.
    pub(super) drafts: Option<Costs>,
    pub(super) turns: Turns,
    pub(super) next_key: u64,
    pub(super) n_steps: u64,
    /// Steps that computed a chunk.
    pub(super) n_chunked: u64,
    /// The last one did.
    pub(super) is_after_chunk: bool,
    pub(super) sampled: Option<Instant>,
    /// The next cold pin did not fit last time: trying again at once would spin.
    pub(super) is_warming_blocked: bool,
}

/// Prefill speed, smoothed over steps.
#[derive(Debug, Default)]
pub(super) struct Speed {
    tokens_per_second: f64,
}

impl Speed {
    /// A quarter of each new measurement: some ten steps forget the past.
    const WEIGHT: f64 = 0.25;

    fn measure(&mut self, n_tokens: usize, time: Duration) {
        let now = n_tokens as f64 / time.as_secs_f64().max(1e-6);
        self.tokens_per_second = if self.tokens_per_second == 0.0 {
            now
        } else {
            self.tokens_per_second.mul_add(1.0 - Self::WEIGHT, now * Self::WEIGHT)
        };
    }
}

/// A sequence that ends with a step: its place among the running ones, how, and what the client is told if it failed.
type End = (usize, Finish, Option<String>);

impl<E: Engine> Scheduler<E> {
    /// Runs until the inbox closes or says stop.
    pub(super) fn run(mut self, inbox: Receiver<Command>) {
        while self.receive(&inbox) {
            self.turn();
        }
        self.end_all();
        self.save_all(&inbox);
    }

    /// What happens between two looks into the inbox: at most one step.
    pub(super) fn turn(&mut self) {
        self.drop_gone();
        self.follow_leaders();
        self.attend();
        self.admit();
        self.grow();
        self.let_idle_go();
        // Before the step, which may take long, and after it, which may be the last for a while.
        self.publish_status();
        let n_copied = self.restore_some();
        let n_prefill = self.step(n_copied);
        if n_copied + n_prefill == 0 {
            self.save_some();
        }
        self.write_some();
        self.publish_status();
    }

    /// Cells that nobody uses any more are left to those who decode. After admission: who just came back keeps theirs.
    fn let_idle_go(&mut self) {
        if self.looked_idle.elapsed() >= IDLE {
            self.looked_idle = Instant::now();
            self.cache.evict_idle(&mut self.engine);
        }
    }

    /// Takes all commands; waits for one only when there is nothing to compute. `false`: stop.
    fn receive(&mut self, inbox: &Receiver<Command>) -> bool {
        let is_idle = self.running.is_empty() && self.waiting.is_empty();
        let is_stalled = if is_idle { self.is_warming_blocked } else { self.candidates().is_empty() };
        let is_copying = std::mem::take(&mut self.savings.is_busy);
        let first = if let Some(wait) = self.savings.sweep_wait() {
            inbox.recv_timeout(wait)
        } else if is_copying {
            Err(RecvTimeoutError::Timeout)
        } else if is_idle && !self.pins.is_any_cold() {
            inbox.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else if is_stalled {
            inbox.recv_timeout(STALLED_WAIT)
        } else {
            Err(RecvTimeoutError::Timeout)
        };
        match first {
            Ok(command) => {
                if !self.take(command) {
                    return false;
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return false,
        }
        loop {
            match inbox.try_recv() {
                Ok(command) => {
                    if !self.take(command) {
                        return false;
                    }
                }
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    pub(super) fn take(&mut self, command: Command) -> bool {
        match command {
            Command::Submit(submissions) => {
                for submission in submissions {
                    let mut sequence = Sequence::answer(self.take_key(), submission, Instant::now());
                    let n_held = self.cache.find(sequence.holder, sequence.reusable());
                    sequence.n_ahead = sequence.tokens.len() - n_held;
                    self.waiting.push(sequence);
                }
                true
            }
            Command::Disk(report) => {
                self.take_report(report);
                true
            }
            Command::Repin(pins) => {
                self.repin(pins);
                true
            }
            // Whoever asked may have gone; it is done all the same.
            Command::Pin { pin, done } => {
                let _ = done.send(self.pin(*pin));
                true
            }
            Command::Unpin { name, owner, done } => {
                let _ = done.send(self.unpin(&name, owner));
                true
            }
            Command::Forget { whose, done } => {
                let _ = done.send(self.forget(whose));
                true
            }
            Command::Stop => false,
        }
    }

    fn take_key(&mut self) -> u64 {
        self.next_key += 1;
        self.next_key
    }

    /// Ends every sequence whose client went away. What was computed stays in the cache.
    fn drop_gone(&mut self) {
        for index in (0..self.running.len()).rev() {
            if self.running[index].sequence.is_gone() {
                self.finish(index, Finish::Cancelled, None);
            }
        }
        for sequence in self.take_waiting(Sequence::is_gone) {
            self.end(sequence, Finish::Cancelled, None);
        }
    }

    /// Takes those out of the queue that are meant.
    pub(super) fn take_waiting(
        &mut self,
        is_meant: impl Fn(&Sequence<E::Sampler>) -> bool,
    ) -> Vec<Sequence<E::Sampler>> {
        let (taken, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut self.waiting).into_iter().partition(is_meant);
        self.waiting = kept;
        // Those that are parked were admitted once.
        let n_new = taken.iter().filter(|sequence| !sequence.was_running).count();
        self.n_waiting.fetch_sub(n_new, Ordering::Relaxed);
        taken
    }

    /// The running sequences' priorities: a follower lends its leader its own, or what was lent to it.
    pub(super) fn priorities(&self) -> Vec<Priority> {
        let mut priorities: Vec<Priority> = self.running.iter().map(|running| running.sequence.priority).collect();
        // Leaders stand before their followers.
        for (index, running) in self.running.iter().enumerate().rev() {
            let Some(follows) = running.sequence.follows else { continue };
            let leader = self.running[..index].iter().position(|other| other.sequence.key == follows.leader);
            if let Some(leader) = leader {
                priorities[leader] = priorities[leader].max(priorities[index]);
            }
        }
        priorities
    }

    /// All that could be computed now.
    fn candidates(&self) -> Vec<batch::Candidate> {
        let (rewinds, priorities) = (self.cache.rewinds(), self.priorities());
        let candidate = |(index, running): (usize, &Running<E::Sampler>)| {
            let candidate = running.sequence.candidate(index, running.n_past(), rewinds)?;
            let share = self.shares.of(running.sequence.holder.owner.client());
            Some(batch::Candidate { priority: priorities[index], share, ..candidate })
        };
        self.running.iter().enumerate().filter_map(candidate).collect()
    }

    /// What the next step is filled by.
    pub(super) fn next_step(&self, n_copied: usize) -> batch::Step {
        let (n_chunked, is_after_chunk) = (self.n_chunked, self.is_after_chunk);
        batch::Step { n_chunked, is_after_chunk, is_mixed: self.cache.is_shared(), n_copied }
    }

    /// Tells the shares who has a prompt to compute.
    fn attend(&mut self) {
        let running = self.running.iter().filter(|running| !running.sequence.is_decoding(running.n_past()));
        let all = running.map(|running| &running.sequence).chain(&self.waiting);
        self.shares.attend(all.map(|sequence| sequence.holder.owner.client()));
    }

    /// Counts the chunks among `parts`, and for whom they are.
    fn count_chunks(&mut self, parts: &[Part]) {
        self.is_after_chunk = false;
        for part in parts {
            let running = &self.running[part.index];
            if !running.sequence.is_decoding(running.n_past()) {
                self.is_after_chunk = true;
                self.shares.charge(running.sequence.holder.owner.client(), part.n);
            }
        }
        self.n_chunked += u64::from(self.is_after_chunk);
    }

    /// Computes one batch and gives out what it brought; the number of prompt tokens in it.
    fn step(&mut self, n_copied: usize) -> usize {
        let mut candidates = self.candidates();
        let adapters_of = |candidate: &batch::Candidate| self.running[candidate.index].sequence.holder.adapters;
        let ready: Vec<_> = candidates.iter().map(|candidate| (adapters_of(candidate), candidate.priority)).collect();
        let adapters = self.turns.next(&ready, Instant::now());
        candidates.retain(|candidate| adapters_of(candidate) == adapters);
        let mut parts = batch::fill(&candidates, self.next_step(n_copied));
        if parts.is_empty() {
            return 0;
        }
        if let Err(error) = self.engine.set_adapters(adapters) {
            self.fail_all(&parts.iter().map(|part| part.index).collect::<Vec<_>>(), &error.to_string());
            return 0;
        }
        self.n_steps += 1;
        self.count_chunks(&parts);
        let n_prefill: usize = parts.iter().filter(|part| part.n > 1).map(|part| part.n).sum();
        let draft = self.draft(&parts);
        parts[0].n += draft.len();
        let batch = self.occupy(&parts, &draft);
        let begun = Instant::now();
        match self.engine.decode(&batch) {
            Ok(()) => {
                if n_prefill == batch.tokens.len() {
                    self.speed.measure(n_prefill, begun.elapsed());
                    self.cache.speeds().prefill = self.speed.tokens_per_second;
                }
                let ends = self.absorb(&parts, &draft);
                self.time_draft(&parts, draft.len(), begun.elapsed());
                for (index, finish, error) in ends {
                    self.finish(index, finish, error);
                }
            }
            Err(DecodeError::NoFreeCells { n_tokens }) => self.make_room(&parts, n_tokens),
            Err(DecodeError::Failed(reason)) => self.fail(&parts, &reason),
        }
        self.record_cells();
        n_prefill
    }

    /// Turns the parts into a batch; their cells are taken from now on. `draft` stands behind the tokens of the only part.
    fn occupy(&mut self, parts: &[Part], draft: &[Token]) -> Batch {
        let mut batch = Batch::default();
        for part in parts {
            let Running { sequence, standing } = &mut self.running[part.index];
            let n_past = standing.n_past();
            self.cache.occupy(&mut self.engine, standing, part.n);
            let is_answer = !sequence.is_warming();
            let tokens = sequence.tokens[n_past..].iter().chain(draft).take(part.n);
            batch.tokens.extend((n_past..).zip(tokens).map(|(pos, &token)| BatchToken {
                token,
                pos,
                seq: standing.seq,
                wants_logits: is_answer && pos + 1 >= sequence.tokens.len(),
            }));
            sequence.served = self.n_steps;
        }
        batch
    }

    /// After a successful step: new prefixes become findable, tokens are sampled. Gives the answers that end, from the back, so
    /// that the places before stay true.
    fn absorb(&mut self, parts: &[Part], draft: &[Token]) -> Vec<End> {
        let mut row = 0;
        let mut ends: Vec<End> = Vec::new();
        for part in parts {
            row += part.n;
            let Running { sequence, standing } = &mut self.running[part.index];
            let n_past = standing.n_past();
            let was_prefill = n_past <= sequence.n_prompt;
            if let Work::Answer(answer) = &mut sequence.work
                && was_prefill
            {
                answer.n_computed += part.n;
            }
            if was_prefill
                && let Err(error) = self.cache.publish(&mut self.engine, standing, &sequence.tokens[..n_past])
            {
                ends.push((part.index, Finish::Error, Some(error.to_string())));
                continue;
            }
            // A memory that cannot be cut is saved where a step ends at a cut, or never.
            let is_saved = !self.cache.is_shared() && !sequence.is_background();
            if is_saved && (n_past == sequence.n_prompt || sequence.cuts.contains(&n_past)) {
                let last_cut = sequence.cuts.last().copied().unwrap_or(0);
                let (holder, tokens) = (sequence.holder, &sequence.tokens[..n_past]);
                self.cache.save_whole(&mut self.engine, holder, standing.seq, tokens, last_cut, Reuse::Once);
            }
            if sequence.checkpoint_at() == Some(n_past) {
                self.cache.checkpoint(&mut self.engine, standing);
            }
            match &sequence.work {
                Work::Warm(pin) => {
                    self.pins.set_progress(*pin, n_past);
                    if n_past == sequence.tokens.len() {
                        ends.push((part.index, Finish::Stop, None));
                    }
                }
                Work::Answer(_) if n_past >= sequence.tokens.len() => match self.sample_along(part.index, row, draft) {
                    Ok(None) => {}
                    Ok(Some(finish)) => ends.push((part.index, finish, None)),
                    Err(error) => ends.push((part.index, Finish::Error, Some(error))),
                },
                Work::Answer(_) => {}
            }
        }
        ends.sort_by_key(|(index, ..)| std::cmp::Reverse(*index));
        ends
    }

    /// Draws the next token of the sequence at `index` after `row` and sends its text; `Some` if the answer ends.
    pub(super) fn sample(&mut self, index: usize, row: usize) -> Result<Option<Finish>, String> {
        let Running { sequence, .. } = &mut self.running[index];
        let Work::Answer(answer) = &mut sequence.work else { return Ok(None) };
        let sampler = answer.sampler.as_mut().expect("a running answer has a sampler");
        let token = self.engine.sample(row, sampler).map_err(|error| error.to_string())?;
        answer.mark_token(Instant::now());
        let is_end = self.vocab.is_end(token);
        if let Some(n_top) = answer.n_logprobs.filter(|_| !is_end) {
            let logits = self.engine.logits(row).map_err(|error| error.to_string())?;
            answer.send_logprobs(told(self.vocab.as_ref(), &answer.rules, logits, token, n_top));
        }
        if is_end {
            let rest = answer.emission.finish();
            answer.send_text(rest);
            return Ok(Some(Finish::Stop));
        }
        answer.n_generated += 1;
        sequence.tokens.push(token);
        let mut piece = Vec::new();
        self.vocab.spell(token, &answer.rules.spelled, &mut piece);
        match answer.emission.push(&piece) {
            Emitted::Stopped(last) => {
                answer.send_text(last);
                return Ok(Some(Finish::Stop));
            }
            Emitted::Text(text) => answer.send_text(text),
        }
        let is_full = sequence.tokens.len() > self.cache.cells().total;
        Ok((answer.n_generated >= answer.max_tokens || is_full).then_some(Finish::Length))
    }

    /// The engine found no cells where the count says there are some: evict one leaf more and let the next step try again.
    fn make_room(&mut self, parts: &[Part], n_tokens: usize) {
        warn!(n_tokens, cells = ?self.cache.cells(), "no free cells");
        for part in parts {
            let Running { standing, .. } = &mut self.running[part.index];
            if let Err(error) = self.cache.vacate(&mut self.engine, standing, part.n) {
                error!(%error, "vacate");
            }
        }
        if self.cache.evict(&mut self.engine, EvictionCause::Cells) {
            return;
        }
        match self.least(|_| true).filter(|_| self.running.len() > 1) {
            None => self.fail_all(&[0], "no free cells for this request"),
            Some(index) => self.park(index),
        }
    }

    /// A failed step ends the sequences in it, and nobody else.
    fn fail(&mut self, parts: &[Part], reason: &str) {
        error!(reason, n_sequences = parts.len(), "a step failed");
        for part in parts {
            let Running { standing, .. } = &mut self.running[part.index];
            if let Err(error) = self.cache.vacate(&mut self.engine, standing, part.n) {
                error!(%error, "vacate");
            }
        }
        let indices: Vec<usize> = parts.iter().map(|part| part.index).collect();
        self.fail_all(&indices, reason);
    }

    fn fail_all(&mut self, indices: &[usize], reason: &str) {
        let mut indices = indices.to_vec();
        indices.sort_unstable();
        for index in indices.into_iter().rev() {
            self.finish(index, Finish::Error, Some(format!("the model could not go on: {reason}")));
        }
    }

    /// Ends the running sequence at `index`; what it computed stays findable unless it failed.
    pub(super) fn finish(&mut self, index: usize, finish: Finish, error: Option<String>) {
        let Running { sequence, standing } = self.running.remove(index);
        let n_past = standing.n_past();
        let computed: &[Token] = &sequence.tokens[..n_past];
        match (&sequence.work, finish) {
            (Work::Warm(pin), Finish::Stop) => {
                let pinned = self.cache.leave_pinned(&mut self.engine, standing, computed);
                let pin = self.pins.set_warm(*pin, pinned).clone();
                self.save_pin(&pin);
                info!(
                    pin = pin.name,
                    n_tokens = n_past,
                    tokens_per_second = self.speed.tokens_per_second as u64,
                    "warm"
                );
            }
            (Work::Warm(pin), _) => {
                self.pins.set_failed(*pin);
                self.cache.abandon(&mut self.engine, standing, computed);
            }
            (Work::Answer(_), Finish::Error) => self.cache.abandon(&mut self.engine, standing, computed),
            (Work::Answer(_), _) => {
                self.cache.leave_for(&mut self.engine, standing, computed, sequence.is_background());
                let holder = sequence.holder;
                if !sequence.is_background() && self.cache.is_shared() && self.cache.saves() {
                    self.learn(holder, &sequence.tokens[..sequence.n_prompt], &sequence.cuts);
                    self.save_later(holder, &sequence.tokens[..n_past], &sequence.cuts, Kept::Private);
                }
            }
        }
        self.end(sequence, finish, error);
    }

    /// Tells client and telemetry that a sequence without cells is over.
    pub(super) fn end(&mut self, sequence: Sequence<E::Sampler>, finish: Finish, error: Option<String>) {
        if let Work::Answer(answer) = sequence.work {
            debug!(key = sequence.key, finish = finish.name(), n_generated = answer.n_generated, "ended");
            let tokens = sequence.tokens.split_at(sequence.n_prompt);
            let n_from_disk = sequence.n_from_disk;
            (self.record)(Record::Request(answer.end(finish, error, tokens, n_from_disk, Instant::now())));
        }
    }

    /// The daemon stops: every open answer ends with an error.
    fn end_all(&mut self) {
        while !self.running.is_empty() {
            self.finish(self.running.len() - 1, Finish::Error, Some("hob is stopping".to_owned()));
        }
        let queued: Vec<_> = self.waiting.drain(..).collect();
        for sequence in queued {
            self.end(sequence, Finish::Error, Some("hob is stopping".to_owned()));
        }
        self.publish_status();
    }

    fn record_cells(&mut self) {
        for (n_tokens, cause) in self.cache.take_evictions() {
            let (tier, cause) = ("cells", cause.name());
            (self.record)(Record::Eviction(EvictionRecord { tier, cause, n_tokens, n_bytes: 0 }));
        }
        let now = Instant::now();
        if self.sampled.is_some_and(|last| now.saturating_duration_since(last) < SAMPLE_EVERY) {
            return;
        }
        self.sampled = Some(now);
        let cells = self.cache.cells();
        (self.record)(Record::Cells(CellsRecord {
            free: cells.free,
            evictable: cells.evictable,
            pinned: cells.pinned,
            held: cells.held,
            reserved: cells.reserved,
            n_running: self.n_answering(),
            n_waiting: self.waiting.len(),
        }));
    }

    /// Shows the state to whoever watches.
    pub(super) fn publish_status(&mut self) {
        let pins = self.pin_statuses();
        // What a leader computes is computed once.
        let running = self.running.iter().map(|running| {
            let n_led = running.sequence.follows.map_or(0, |follows| follows.n_common);
            running.sequence.tokens.len() - running.n_past().max(n_led)
        });
        let queued = self.waiting.iter().map(|sequence| sequence.n_ahead);
        let (n_ids_free, n_ids_running, n_ids) = self.cache.ids();
        let status = Status {
            memory: Some(self.engine.limits().memory_class.name()),
            checkpoint_bytes: self.cache.checkpoint_bytes(),
            pins,
            cells: self.cache.cells(),
            n_ids_free,
            n_ids_running,
            n_ids,
            n_running: self.n_answering(),
            n_waiting: self.waiting.len(),
            n_tokens_ahead: running.chain(queued).sum(),
            prefill_tokens_per_second: self.speed.tokens_per_second as u64,
            n_adapter_switches: self.turns.n_switches(),
            lower: self.cache.tiers().held(),
            lower_budgets: self.cache.tiers().budgets(),
        };
        self.status.send_if_modified(|old| {
            let is_new = *old != status;
            *old = status;
            is_new
        });
    }
}

/// How likely `token` was, and the `n_top` likeliest.
fn told(vocab: &dyn Vocab, rules: &AnswerRules, logits: &[f32], token: Token, n_top: usize) -> TokenLogprob {
    let candidate = |token, logprob| {
        let mut bytes = Vec::new();
        vocab.spell(token, &rules.spelled, &mut bytes);
        Candidate { bytes, logprob }
    };
    let (own, top) = logprobs(logits, token, n_top);
    TokenLogprob {
        token: candidate(token, own),
        top: top.into_iter().map(|(token, logprob)| candidate(token, logprob)).collect(),
    }
}
