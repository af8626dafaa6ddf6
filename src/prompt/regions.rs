//! Which tokens of a prompt belong to which section.
//!
//! A *region* is a run of tokens of one section; regions follow each other without a gap from the first token to the last.
//! A section has several where live blocks stand between its messages. Found by looking for the messages' own text in what
//! the template made of it, so that a region's end can be off by the few tokens that the template writes between two
//! messages; where a section has a cut, its end is exact. Nothing is decided here: regions are for those who ask why.

use super::live::LiveBlock;
use super::tokens::Tokeniser;
use super::{Section, Volatility};
use crate::request::{Message, Role, Token};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    pub section_idx: usize,
    /// The token offset behind its last token.
    pub end: usize,
}

/// A prompt with all that its regions are found by.
pub(super) struct Prompt<'a> {
    pub(super) text: &'a str,
    pub(super) tokens: &'a [Token],
    pub(super) sections: &'a [Section],
    /// As they were rendered: with the house's own, and tools that hob wrote.
    pub(super) arranged: &'a [Message],
    /// The client's messages with their live blocks.
    pub(super) messages: &'a [Message],
    pub(super) live: &'a [LiveBlock],
    /// Whether tools stand in a message's text, by hob, and not where the template puts them.
    pub(super) tools_in_text: bool,
    /// A place in the client's own system text, in bytes.
    pub(super) place: Option<usize>,
}

/// Regions, and the token at the place that was asked for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Regions {
    pub(super) regions: Vec<Region>,
    pub(super) place: Option<usize>,
}

impl Prompt<'_> {
    pub(super) fn regions(&self, tokeniser: &Tokeniser) -> Regions {
        let mut walk = Walk { prompt: self, at: 0, ends: Vec::new(), place: None };
        walk.head();
        walk.turns();
        let mut bytes: Vec<usize> = walk.ends.iter().map(|&(_, end)| end).chain(walk.place).collect();
        bytes.sort_unstable();
        let offsets = tokeniser.offsets(self.text, self.tokens, &bytes);
        let token_at = |byte: usize| offsets[bytes.partition_point(|&other| other < byte)];

        let mut regions: Vec<Region> = Vec::with_capacity(walk.ends.len());
        let mut start = 0;
        for &(section_idx, byte) in &walk.ends {
            let end = self.sections[section_idx].cut.unwrap_or_else(|| token_at(byte)).max(start);
            match regions.last_mut() {
                Some(last) if last.section_idx == section_idx => last.end = end,
                _ if end > start => regions.push(Region { section_idx, end }),
                _ => {}
            }
            start = end;
        }
        match (regions.last_mut(), walk.ends.last()) {
            (Some(last), _) => last.end = self.tokens.len(),
            // White space alone: the template dropped it, and what it wrote is the last section's.
            (None, Some(&(section_idx, _))) => regions.push(Region { section_idx, end: self.tokens.len() }),
            (None, None) => {}
        }
        Regions { regions, place: walk.place.map(token_at) }
    }
}

struct Walk<'a> {
    prompt: &'a Prompt<'a>,
    /// In front of it all is found.
    at: usize,
    /// Sections and where in the text they end.
    ends: Vec<(usize, usize)>,
    place: Option<usize>,
}

impl Walk<'_> {
    /// The sections in front of the turns, which stand one after the other in the first messages.
    fn head(&mut self) {
        let Prompt { sections, arranged, tools_in_text, place, .. } = *self.prompt;
        let head = sections.iter().enumerate().filter(|(_, section)| section.class < Volatility::Turn);
        let mut head = head.peekable();
        // Bytes of a section that its last message did not hold.
        let mut n_left = None;
        for message in arranged {
            let is_by_template = |section: &Section| section.name == "tools" && !tools_in_text;
            let Some((start, end)) = self.find(&message.content) else { continue };
            while head.peek().is_some_and(|(_, section)| is_by_template(section)) {
                let (section_idx, _) = head.next().expect("it was just seen");
                self.ends.push((section_idx, start));
            }
            if head.peek().is_none() {
                break;
            }
            // An answer of hob's own ends an exchange.
            if message.role == Role::Assistant {
                self.at = end;
                continue;
            }
            let content = message.content.trim_start();
            let mut used = 0;
            while let Some(&(section_idx, section)) = head.peek().filter(|(_, section)| !is_by_template(section)) {
                if section.class == Volatility::Document {
                    // In front of the first of them hob says what they are.
                    used += content.get(used..).and_then(|rest| rest.find("<document ")).unwrap_or(0);
                }
                let n_bytes = n_left.unwrap_or(section.n_bytes);
                if let Some(place) = place.filter(|_| section.name == "client system") {
                    let n_before = section.n_bytes - n_bytes;
                    // Behind all that stays there may have been an empty line.
                    let place = place.min(section.n_bytes);
                    if place >= n_before && self.place.is_none_or(|_| place > n_before) {
                        self.place = Some((start + used + place - n_before).min(end));
                    }
                }
                let n_held = content.len().saturating_sub(used);
                if n_bytes > n_held {
                    n_left = Some(n_bytes - n_held).filter(|_| n_held > 0 && section.name == "client system");
                    break;
                }
                n_left = None;
                used += n_bytes;
                self.ends.push((section_idx, (start + used).min(end)));
                // An empty line parts it from the next.
                used += 2;
                head.next();
            }
            self.at = end;
        }
        // What was not found lies between what was and the turns.
        self.ends.extend(head.map(|(section_idx, _)| (section_idx, self.at)));
    }

    fn turns(&mut self) {
        let Prompt { text, sections, messages, live, .. } = *self.prompt;
        let named = |name: &str| sections.iter().position(|section| section.name == name);
        let (history, question, live_section) = (named("history"), named("question"), named("live"));
        let is_leading = |message: &&Message| matches!(message.role, Role::System | Role::Developer);
        let n_leading = messages.iter().take_while(is_leading).count();
        let question_idx = messages.iter().rposition(|message| message.role == Role::User).unwrap_or(messages.len());
        for (message_idx, message) in messages.iter().enumerate().skip(n_leading) {
            let section = if message_idx < question_idx { history } else { question };
            let Some((start, end)) = self.find(&message.content) else { continue };
            let block = live.iter().find(|block| block.message_idx == message_idx);
            if let (Some(block), Some(live_section)) = (block, live_section) {
                if let Some(section) = section.filter(|_| message_idx != question_idx) {
                    self.ends.push((section, start));
                }
                self.ends.push((live_section, (start + block.n_bytes).min(end)));
            }
            self.ends.extend(section.map(|section| (section, end)));
            self.at = end;
        }
        self.ends.extend(question.or(history).map(|section| (section, text.len())));
    }

    /// Where `content` stands behind what was found before, without the white space around it.
    fn find(&self, content: &str) -> Option<(usize, usize)> {
        // Enough to find the place by; the rest is only compared.
        const NEEDLE_BYTES: usize = 64;
        let content = content.trim();
        let needle_end = content.char_indices().map(|(at, _)| at).find(|at| *at >= NEEDLE_BYTES);
        let needle = &content[..needle_end.unwrap_or(content.len())];
        if content.is_empty() {
            return None;
        }
        let mut from = self.at;
        loop {
            let start = from + self.prompt.text[from..].find(needle)?;
            if self.prompt.text[start..].starts_with(content) {
                return Some((start, start + content.len()));
            }
            from = start + needle.chars().next().map_or(1, char::len_utf8);
        }
    }
}
