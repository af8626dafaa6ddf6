//! One choice's way out: the events of a submission become deltas as they come, or parts when it is over.
//!
//! A *choice* is one of the answers to one request; most requests want one. Its text is read by the planned reader, and at its
//! end the planner is told what was said, to know it again when the client sends it back.

use std::sync::Arc;

use tokio::sync::mpsc;
use tracing::warn;

use super::House;
use super::deltas::{Delta, Deltas};
use crate::prompt::{AnswerParts, AnswerReader, AnswerRules, Spoken};
use crate::request::{Done, Event, Finish, TokenLogprob};

pub(super) struct Choice {
    /// As telemetry has it.
    id: String,
    pub(super) events: mpsc::Receiver<Event>,
    pub(super) is_over: bool,
    rules: Arc<AnswerRules>,
    reader: Arc<dyn AnswerReader>,
    house: Arc<dyn House>,
    /// All text so far, as the model wrote it.
    text: String,
    deltas: Deltas,
    /// Not told yet: their text is held back.
    logprobs: Vec<TokenLogprob>,
    spoken: Spoken,
}

/// What a choice says next. There are deltas in it, or it is the end.
#[derive(Debug)]
pub(super) struct Piece {
    /// Which choice it is of.
    pub(super) choice: usize,
    pub(super) deltas: Vec<Delta>,
    /// Of these deltas' tokens, if they were asked for.
    pub(super) logprobs: Vec<TokenLogprob>,
    pub(super) end: Option<End>,
}

#[derive(Debug)]
pub(super) struct End {
    pub(super) done: Done,
    /// It ended because the model called tools, and all calls are whole.
    pub(super) is_calling: bool,
    /// Generated tokens that it thought in, with the marks around them.
    pub(super) n_thinking: usize,
}

/// A choice when it is over.
#[derive(Debug)]
pub(super) struct Whole {
    /// Each call has an id.
    pub(super) parts: AnswerParts,
    pub(super) logprobs: Vec<TokenLogprob>,
    pub(super) end: End,
}

impl Choice {
    /// What it obeys, and who reads it; `spoken`: nothing yet, as the planner knows it.
    pub(super) fn new(
        id: String,
        events: mpsc::Receiver<Event>,
        (rules, reader): (Arc<AnswerRules>, Arc<dyn AnswerReader>),
        house: Arc<dyn House>,
        spoken: Spoken,
    ) -> Choice {
        let (text, deltas, logprobs) = (String::new(), Deltas::default(), Vec::new());
        Choice { id, events, is_over: false, rules, reader, house, text, deltas, logprobs, spoken }
    }

    /// What `event` makes it say, as the choice number `choice`.
    pub(super) fn hear(&mut self, choice: usize, event: Event) -> Option<Piece> {
        let (deltas, end) = match event {
            Event::Text(text) => {
                self.text.push_str(&text);
                // What cannot be read yet may be later, or is told as it stands when all of it is there.
                let parts = self.reader.read(&self.text, false).unwrap_or_default();
                (self.deltas.grow(&parts, false), None)
            }
            Event::Done(done) => {
                let (deltas, end) = self.finish(done);
                (deltas, Some(end))
            }
            Event::Logprobs(logprobs) => {
                self.logprobs.extend(logprobs);
                return None;
            }
            Event::Admitted(_) | Event::Failed(_) => return None,
        };
        if deltas.is_empty() && end.is_none() {
            return None;
        }
        Some(Piece { choice, deltas, logprobs: std::mem::take(&mut self.logprobs), end })
    }

    /// Like `hear`, for who waits for the end: the text is read once.
    pub(super) fn collect(&mut self, event: Event) -> Option<Whole> {
        match event {
            Event::Text(text) => self.text.push_str(&text),
            Event::Logprobs(logprobs) => self.logprobs.extend(logprobs),
            Event::Done(done) => {
                let (_, end) = self.finish(done);
                let parts = self.deltas.told().clone();
                return Some(Whole { parts, logprobs: std::mem::take(&mut self.logprobs), end });
            }
            Event::Admitted(_) | Event::Failed(_) => {}
        }
        None
    }

    /// The last deltas. The planner hears what was said.
    fn finish(&mut self, done: Done) -> (Vec<Delta>, End) {
        self.is_over = true;
        let is_complete = done.finish == Finish::Stop;
        // One that was cut off is a beginning, unless it reads as a whole.
        let read = self.reader.read(&self.text, true);
        let read = if is_complete { read } else { read.or_else(|_| self.reader.read(&self.text, false)) };
        let is_calling = is_complete && read.as_ref().is_ok_and(|parts| !parts.calls.is_empty());
        let deltas = match read {
            Ok(parts) => {
                let deltas = self.deltas.grow(&parts, is_complete);
                let n_untold = parts.content.trim_end().len().saturating_sub(self.deltas.told().content.len());
                if n_untold > 0 {
                    warn!(id = self.id, n_bytes = n_untold, "text behind a call was left out");
                }
                deltas
            }
            Err(_) => {
                // The reader's reason would quote the answer.
                let n_bytes = self.text.len();
                warn!(id = self.id, n_bytes, "an answer could not be parted into text and calls: it is text");
                self.deltas.rest(&self.text).into_iter().collect()
            }
        };
        let AnswerParts { reasoning, content, calls } = self.deltas.told().clone();
        self.house.remember(Spoken { text: content, calls, tokens: done.generated.clone(), ..self.spoken.clone() });
        let thinking = self.rules.thinking.as_ref().filter(|_| !reasoning.is_empty());
        let n_thinking = thinking.map_or(0, |thinking| thinking.n_thinking(&done.generated));
        (deltas, End { done, is_calling, n_thinking })
    }
}
