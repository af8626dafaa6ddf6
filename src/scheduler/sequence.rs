//! One request's (or one pin's) life inside the scheduler: its tokens, where it stands, what it still owes its client.
//!
//! A *sequence* waits, runs (prefill, then decode) and ends; a *parked* one ran, gave its place or its cells up and waits again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::Submission;
use super::batch::{Candidate, chunk_end};
use super::draft::Drafter;
use super::emission::Emission;
use super::restoring::Restoring;
use crate::engine::AnswerRules;
use crate::kv::{Holder, Standing};
use crate::request::{CacheUse, Done, Event, Finish, Priority, Sampling, Timings, Token, TokenLogprob, TokenPrompt};
use crate::telemetry::{Label, RequestRecord};

/// Cells promised at admission for the answer; an answer that is longer asks for more, `GROWTH` at a time.
/// 256 tokens hold most spoken answers; clients send `max_tokens: 3000` as a habit, and reserving that would refuse others.
pub(super) const FIRST_RESERVATION: usize = 256;
pub(super) const GROWTH: usize = 64;

/// Events that one step may send for one sequence: logprobs, text, text that was held back, the end.
pub(super) const EVENTS_PER_STEP: usize = 4;

/// Tokens that end the last message and open the answer, at most, in the templates of models with checkpoints: those of the last
/// message that are among them are computed again when a conversation goes back.
const OPENING: usize = 16;

/// Fewer tokens are computed sooner than a checkpoint is copied out.
const CHECKPOINT_MIN: usize = 64;

pub(super) struct Sequence<S> {
    /// Unique for the daemon's life; followers name their leader by it.
    pub(super) key: u64,
    /// Whose it is, and the adapters that it is computed under.
    pub(super) holder: Holder,
    pub(super) priority: Priority,
    /// Prompt and generated tokens. The first `n_past` are computed.
    pub(super) tokens: Vec<Token>,
    pub(super) n_prompt: usize,
    pub(super) cuts: Vec<usize>,
    pub(super) work: Work<S>,
    /// The running sequence that computes this one's next tokens, and up to where they agree.
    pub(super) follows: Option<Follows>,
    /// It is being brought back from below the cells.
    pub(super) restoring: Option<Restoring>,
    /// Tokens that came back for it from RAM, and from disk.
    pub(super) n_from_ram: usize,
    pub(super) n_from_disk: usize,
    /// The step in which it last computed something, or before which it began to run.
    pub(super) served: u64,
    /// Where it began to compute: what is before came from the cache, or from its leader.
    pub(super) n_began: usize,
    /// Tokens to compute, as far as was known when it came.
    pub(super) n_ahead: usize,
    /// It is parked.
    pub(super) was_running: bool,
    /// It waited so long that it gives its place to nobody.
    pub(super) keeps_place: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Follows {
    pub(super) leader: u64,
    pub(super) n_common: usize,
}

/// What the tokens are computed for.
pub(super) enum Work<S> {
    Answer(Box<Answer<S>>),
    /// The index of the pin to warm.
    Warm(usize),
}

/// A client's answer in the making.
pub(super) struct Answer<S> {
    pub(super) sampling: Sampling,
    pub(super) rules: Arc<AnswerRules>,
    /// See `Request::n_logprobs`.
    pub(super) n_logprobs: Option<usize>,
    pub(super) sampler: Option<S>,
    pub(super) emission: Emission,
    pub(super) max_tokens: usize,
    pub(super) n_generated: usize,
    /// From the first step on that it had for itself.
    pub(super) drafter: Option<Drafter>,
    /// Tokens computed ahead for it, and those that were right.
    pub(super) n_drafted: usize,
    pub(super) n_accepted: usize,
    /// Prompt tokens computed for it so far.
    pub(super) n_computed: usize,
    pub(super) label: Label,
    pub(super) events: mpsc::Sender<Event>,
    pub(super) cache: Option<CacheUse>,
    times: Times,
}

struct Times {
    received: Instant,
    submitted: Instant,
    admitted: Option<Instant>,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
}

impl<S> Sequence<S> {
    pub(super) fn answer(key: u64, submission: Submission, now: Instant) -> Sequence<S> {
        let answer = Answer {
            sampling: submission.sampling,
            emission: Emission::new([&*submission.stop, &submission.rules.stops].concat()),
            rules: submission.rules,
            n_logprobs: submission.n_logprobs,
            sampler: None,
            max_tokens: submission.max_tokens.unwrap_or(usize::MAX),
            n_generated: 0,
            drafter: None,
            n_drafted: 0,
            n_accepted: 0,
            n_computed: 0,
            label: submission.label,
            events: submission.events,
            cache: None,
            times: Times {
                received: submission.received,
                submitted: now,
                admitted: None,
                first_token: None,
                last_token: None,
            },
        };
        Sequence {
            key,
            holder: Holder { owner: submission.owner, adapters: submission.adapters },
            priority: submission.priority,
            n_prompt: submission.prompt.tokens.len(),
            tokens: submission.prompt.tokens,
            cuts: submission.prompt.cuts,
            work: Work::Answer(Box::new(answer)),
            follows: None,
            restoring: None,
            n_from_ram: 0,
            n_from_disk: 0,
            served: 0,
            n_began: 0,
            n_ahead: 0,
            was_running: false,
            keeps_place: false,
        }
    }

    pub(super) fn warming(key: u64, pin: usize, holder: Holder, prompt: TokenPrompt) -> Sequence<S> {
        let TokenPrompt { tokens, cuts } = prompt;
        Sequence {
            key,
            holder,
            priority: Priority::Background,
            n_prompt: tokens.len(),
            tokens,
            cuts,
            work: Work::Warm(pin),
            follows: None,
            restoring: None,
            n_from_ram: 0,
            n_from_disk: 0,
            served: 0,
            n_began: 0,
            n_ahead: 0,
            was_running: false,
            keeps_place: false,
        }
    }

    pub(super) fn is_warming(&self) -> bool {
        matches!(self.work, Work::Warm(_))
    }

    /// Tokens that may come from the cache: all, but one that has to be computed where logits are wanted.
    pub(super) fn reusable(&self) -> &[Token] {
        match self.work {
            Work::Answer(_) => &self.tokens[..self.tokens.len() - 1],
            Work::Warm(_) => &self.tokens,
        }
    }

    /// Cells for the answer to promise beside those of the tokens themselves.
    pub(super) fn first_reservation(&self) -> usize {
        match &self.work {
            Work::Answer(answer) => (answer.max_tokens - answer.n_generated).min(FIRST_RESERVATION),
            Work::Warm(_) => 0,
        }
    }

    /// Whether it sampled before and has just its newest token to compute.
    pub(super) fn is_decoding(&self, n_past: usize) -> bool {
        self.has_spoken() && n_past + 1 == self.tokens.len()
    }

    /// An answer that nobody waits for: what it leaves is never saved, and is the first to be evicted.
    pub(super) fn is_background(&self) -> bool {
        self.priority == Priority::Background && !self.is_warming()
    }

    /// Where its conversation may part from this prompt's later, when another answer follows, or the next turn says this one
    /// without its thoughts: before what the template writes to open the answer. Before the conversation begins there is none.
    pub(super) fn checkpoint_at(&self) -> Option<usize> {
        let at = self.n_prompt.checked_sub(OPENING)?;
        let is_conversation = at > self.cuts.last().copied().unwrap_or(0) && !self.is_warming();
        (is_conversation && at >= CHECKPOINT_MIN && !self.is_background()).then_some(at)
    }

    /// It said something.
    pub(super) fn has_spoken(&self) -> bool {
        self.tokens.len() > self.n_prompt
    }

    /// Its part in filling the next step, as far as it knows; `None` while it follows another, is restored, or its client reads too slowly.
    /// `rewinds`: a step has to end where a checkpoint is to be taken.
    pub(super) fn candidate(&self, index: usize, n_past: usize, rewinds: bool) -> Option<Candidate> {
        let checkpoint = self.checkpoint_at().filter(|&at| rewinds && n_past < at).unwrap_or(usize::MAX);
        let can_send = match &self.work {
            Work::Answer(answer) => answer.events.capacity() >= EVENTS_PER_STEP,
            Work::Warm(_) => true,
        };
        (self.follows.is_none() && self.restoring.is_none() && can_send && n_past < self.tokens.len()).then(|| {
            Candidate {
                index,
                priority: self.priority,
                share: 0,
                size: self.tokens.len().saturating_sub(self.n_began),
                n_past,
                n_tokens: self.tokens.len(),
                chunk_end: chunk_end(&self.cuts, self.tokens.len(), n_past).min(checkpoint),
                is_decoding: self.is_decoding(n_past),
                served: self.served,
            }
        })
    }

    /// Whether nobody wants the answer any more.
    pub(super) fn is_gone(&self) -> bool {
        matches!(&self.work, Work::Answer(answer) if answer.events.is_closed())
    }
}

impl<S> Answer<S> {
    /// Tells the client what the cache did, once.
    pub(super) fn admit(&mut self, cache: CacheUse, now: Instant) {
        if self.cache.is_none() {
            self.cache = Some(cache);
            self.send(Event::Admitted(cache));
        }
        self.times.admitted.get_or_insert(now);
    }

    pub(super) fn mark_token(&mut self, now: Instant) {
        self.times.first_token.get_or_insert(now);
        self.times.last_token = Some(now);
    }

    /// Tells the probabilities of the token that comes next.
    pub(super) fn send_logprobs(&mut self, logprob: TokenLogprob) {
        self.send(Event::Logprobs(vec![logprob]));
    }

    pub(super) fn send_text(&mut self, text: String) {
        if !text.is_empty() {
            self.send(Event::Text(text));
        }
    }

    /// Ends the answer towards its client and gives what telemetry should know.
    pub(super) fn end(
        mut self,
        finish: Finish,
        error: Option<String>,
        (prompt, generated): (&[Token], &[Token]),
        n_from_disk: usize,
        now: Instant,
    ) -> RequestRecord {
        let n_prompt = prompt.len();
        if matches!(finish, Finish::Length) {
            let rest = self.emission.finish();
            self.send_text(rest);
        }
        let timings = self.times.timings(now);
        let cache = self.cache.unwrap_or(CacheUse {
            n_prompt,
            n_cached: 0,
            n_restored: 0,
            cause: crate::request::MissCause::Cold,
        });
        match error {
            Some(error) => self.send(Event::Failed(error)),
            None => {
                let (n_generated, generated) = (self.n_generated, generated.to_vec());
                let stop = self.emission.stopped_by().map(str::to_owned);
                self.send(Event::Done(Done { finish, stop, cache, n_generated, generated, timings }));
            }
        }
        RequestRecord {
            label: self.label,
            n_prompt,
            n_reused_cells: cache.n_cached - cache.n_restored,
            n_reused_ram: cache.n_restored - n_from_disk.min(cache.n_restored),
            n_reused_disk: n_from_disk.min(cache.n_restored),
            n_computed: self.n_computed,
            n_generated: self.n_generated,
            n_drafted: self.n_drafted,
            n_accepted: self.n_accepted,
            queue: timings.queue,
            ttft: timings.ttft,
            prefill: timings.prefill,
            decode: timings.decode,
            finish: finish.name(),
            cause: cache.cause.name(),
            miss_at: cache.n_cached,
        }
    }

    /// A closed channel means that the client is gone; a full one cannot be, `candidate` saw to that.
    fn send(&mut self, event: Event) {
        let _ = self.events.try_send(event);
    }
}

impl Times {
    fn timings(&self, now: Instant) -> Timings {
        let admitted = self.admitted.unwrap_or(now);
        let prefilled = self.first_token.unwrap_or(now);
        Timings {
            queue: admitted.saturating_duration_since(self.submitted),
            ttft: self.first_token.map(|first| first.saturating_duration_since(self.received)),
            prefill: prefilled.saturating_duration_since(admitted),
            decode: match (self.first_token, self.last_token) {
                (Some(first), Some(last)) => last.saturating_duration_since(first),
                _ => Duration::ZERO,
            },
        }
    }
}

/// A sequence with its place in the cache.
pub(super) struct Running<S> {
    pub(super) sequence: Sequence<S>,
    pub(super) standing: Standing,
}

impl<S> Running<S> {
    pub(super) fn n_past(&self) -> usize {
        self.standing.n_past()
    }
}
