//! Defines `Walk`: the places of a grammar that a text has come to.
//!
//! A *stack* is one way to go on: the element that comes next, and what comes behind its rule. A *state* is the set of all stacks
//! after a text; equal sets are one state, and the way from one to the next is remembered. So a text costs its length, in how
//! many ways soever it can be read: llama.cpp's own search follows each way by itself, and `[a ]? [a ]? …` thirty times takes
//! it longer than anybody waits.

use std::collections::HashMap;
use std::sync::Arc;

use super::notation::{Element, Rules};
use super::pieces::Pieces;
use crate::request::Token;

/// Nothing comes behind: the grammar's end.
const BOTTOM: u32 = u32::MAX;
/// The state without a stack.
const DEAD: u32 = 0;
/// The way is not known yet.
const UNKNOWN: u32 = u32::MAX;
/// Stacks looked at for one token: some 20 ms. A grammar of 500 tools takes a hundredth.
const WORK_MAX: usize = 500_000;
/// Remembered states, of half a kilobyte and more each. Answers go through some hundred.
const N_STATES_MAX: usize = 8_192;

/// The grammar leaves more ways open than can be followed in bounded time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TooWide;

pub(super) struct Walk {
    rules: Arc<Rules>,
    /// The next element, and the stack behind it.
    stacks: Vec<(u32, u32)>,
    by_stack: HashMap<(u32, u32), u32>,
    states: Vec<State>,
    by_state: HashMap<Box<[u32]>, u32>,
    /// When a stack was last looked at.
    marks: Vec<u32>,
    now: u32,
    work: usize,
}

struct State {
    /// Sorted; each ends at a letter or a token, or is the bottom.
    stacks: Box<[u32]>,
    ascii: Box<[u32; 128]>,
    others: HashMap<u32, u32>,
}

/// After a text: the state, and the beginning of a character.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    state: u32,
    partial: Partial,
}

/// Bits of a character's first bytes, and how many bytes are missing.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Partial {
    bits: u32,
    n_missing: u8,
}

impl Place {
    pub(super) const DEAD: Place = Place { state: DEAD, partial: Partial { bits: 0, n_missing: 0 } };

    pub(super) fn is_dead(self) -> bool {
        self.state == DEAD
    }
}

impl Walk {
    /// At the beginning of `rules`.
    pub(super) fn start(rules: Arc<Rules>) -> Result<(Walk, Place), TooWide> {
        let mut walk = Walk {
            rules: Arc::clone(&rules),
            stacks: Vec::new(),
            by_stack: HashMap::new(),
            states: Vec::new(),
            by_state: HashMap::new(),
            marks: Vec::new(),
            now: 0,
            work: 0,
        };
        walk.state(Vec::new())?;
        let starts: Vec<u32> =
            rules.alternatives[rules.root as usize].iter().map(|&start| walk.stack(start, BOTTOM)).collect();
        let state = walk.expand(starts)?;
        Ok((walk, Place { state, partial: Partial::default() }))
    }

    /// Whether the answer may end at `place`.
    pub(super) fn can_end(&self, place: Place) -> bool {
        place.partial.n_missing == 0 && self.states[place.state as usize].stacks.contains(&BOTTOM)
    }

    /// Where `token` with its text leads.
    pub(super) fn token(&mut self, place: Place, token: Token, text: &[u8]) -> Result<Place, TooWide> {
        self.work = 0;
        let named = self.by_token(place, token)?;
        let spelled = self.text(place, text)?;
        if named.is_dead() || spelled.is_dead() {
            return Ok(if named.is_dead() { spelled } else { named });
        }
        // A token that is named is a whole one.
        if spelled.partial.n_missing > 0 {
            return Ok(named);
        }
        let both = [named, spelled].map(|place| &*self.states[place.state as usize].stacks).concat();
        let state = self.state(both)?;
        Ok(Place { state, partial: Partial::default() })
    }

    /// Where `text` leads.
    pub(super) fn text(&mut self, mut place: Place, text: &[u8]) -> Result<Place, TooWide> {
        for &byte in text {
            if place.is_dead() {
                break;
            }
            place = self.byte(place, byte)?;
        }
        Ok(if self.goes_on(place) { place } else { Place::DEAD })
    }

    /// Sets `allowed` of each token of `pieces` that may come.
    pub(super) fn allow(&mut self, place: Place, pieces: &Pieces, allowed: &mut [bool]) -> Result<(), TooWide> {
        self.work = 0;
        allowed.fill(false);
        if self.can_end(place) {
            pieces.ends.iter().for_each(|end| allowed[end.0 as usize] = true);
        }
        let mut path = vec![place];
        let mut dead_from = usize::MAX;
        for (token, text, n_shared) in pieces.iter() {
            if n_shared >= dead_from {
                continue;
            }
            dead_from = usize::MAX;
            path.truncate(n_shared + 1);
            for (at, &byte) in text.iter().enumerate().skip(n_shared) {
                let next = self.byte(path[at], byte)?;
                if next.is_dead() {
                    dead_from = at + 1;
                    break;
                }
                path.push(next);
            }
            if dead_from == usize::MAX {
                allowed[token.0 as usize] = self.goes_on(path[text.len()]);
            }
        }
        if place.partial.n_missing > 0 {
            return Ok(());
        }
        for &stack in &self.states[place.state as usize].stacks {
            match self.next_element(stack) {
                Some(Element::Token(token)) => {
                    // A grammar may name what no vocabulary has.
                    allowed.get_mut(token.0 as usize).into_iter().for_each(|allowed| *allowed = true);
                }
                Some(Element::NotToken(not)) => {
                    let others = pieces.iter().map(|(token, ..)| token).filter(|token| *token != not);
                    others.for_each(|token| allowed[token.0 as usize] = true);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Forgets the ways that were gone, if they are many.
    pub(super) fn tidy(&mut self, place: Place) -> Result<Place, TooWide> {
        if self.states.len() < N_STATES_MAX / 2 && self.stacks.len() < N_STATES_MAX * 8 {
            return Ok(place);
        }
        let old = std::mem::take(&mut self.stacks);
        let kept: Vec<u32> = self.states[place.state as usize].stacks.to_vec();
        self.by_stack.clear();
        self.states.clear();
        self.by_state.clear();
        self.marks.clear();
        self.now = 0;
        self.state(Vec::new())?;
        let mut anew = Vec::with_capacity(kept.len());
        for stack in kept {
            let mut elements = Vec::new();
            let mut at = stack;
            while at != BOTTOM {
                let (element, below) = old[at as usize];
                elements.push(element);
                at = below;
            }
            anew.push(elements.into_iter().rev().fold(BOTTOM, |below, element| self.stack(element, below)));
        }
        let state = self.state(anew)?;
        Ok(Place { state, ..place })
    }

    fn byte(&mut self, place: Place, byte: u8) -> Result<Place, TooWide> {
        let Place { state, partial: Partial { bits, n_missing } } = place;
        let partial = |bits: u8, n_missing| Place { state, partial: Partial { bits: bits.into(), n_missing } };
        Ok(match (n_missing, byte) {
            (0, 0..0x80) => Place { state: self.letter(state, byte.into())?, ..place },
            (0, 0xc2..0xe0) => partial(byte & 0x1f, 1),
            (0, 0xe0..0xf0) => partial(byte & 0x0f, 2),
            (0, 0xf0..0xf5) => partial(byte & 0x07, 3),
            (1, 0x80..0xc0) => {
                let letter = bits << 6 | u32::from(byte & 0x3f);
                Place { state: self.letter(state, letter)?, partial: Partial::default() }
            }
            (2.., 0x80..0xc0) => {
                let partial = Partial { bits: bits << 6 | u32::from(byte & 0x3f), n_missing: n_missing - 1 };
                Place { state, partial }
            }
            _ => Place::DEAD,
        })
    }

    fn letter(&mut self, state: u32, letter: u32) -> Result<u32, TooWide> {
        let from = &self.states[state as usize];
        let known = match from.ascii.get(letter as usize) {
            Some(&next) => next,
            None => from.others.get(&letter).copied().unwrap_or(UNKNOWN),
        };
        if known != UNKNOWN {
            return Ok(known);
        }
        let stacks = from.stacks.clone();
        let mut next = Vec::new();
        for &stack in &stacks {
            if let Some(element) = self.next_element(stack)
                && self.rules.has_letter(element, letter, letter) == Some(true)
            {
                next.push(self.behind(stack));
            }
        }
        self.work += stacks.len();
        let next = self.expand(next)?;
        let from = &mut self.states[state as usize];
        match from.ascii.get_mut(letter as usize) {
            Some(way) => *way = next,
            None => drop(from.others.insert(letter, next)),
        }
        Ok(next)
    }

    fn by_token(&mut self, place: Place, token: Token) -> Result<Place, TooWide> {
        if place.partial.n_missing > 0 {
            return Ok(Place::DEAD);
        }
        let stacks = self.states[place.state as usize].stacks.clone();
        let fits = |stack: &&u32| match self.next_element(**stack) {
            Some(Element::Token(named)) => named == token,
            Some(Element::NotToken(named)) => named != token,
            _ => false,
        };
        let fitting: Vec<u32> = stacks.iter().filter(fits).copied().collect();
        let next = fitting.into_iter().map(|stack| self.behind(stack)).collect();
        Ok(Place { state: self.expand(next)?, ..place })
    }

    /// Whether something may come behind `place`, or the end.
    fn goes_on(&self, Place { state, partial }: Place) -> bool {
        if partial.n_missing == 0 {
            return state != DEAD;
        }
        // The characters that begin like this; the shortest spelling of some needs fewer bytes.
        let n_bits = 6 * u32::from(partial.n_missing);
        let (first, last) = (partial.bits << n_bits, partial.bits << n_bits | ((1 << n_bits) - 1));
        let first = match (first, partial.n_missing) {
            (0, 2) => 0x800,
            (0, 3) => 0x1_0000,
            _ => first,
        };
        let stacks = &self.states[state as usize].stacks;
        let elements = stacks.iter().filter_map(|&stack| self.next_element(stack));
        elements.into_iter().any(|element| self.rules.has_letter(element, first, last) == Some(true))
    }

    fn next_element(&self, stack: u32) -> Option<Element> {
        let (element, _) = *self.stacks.get(stack as usize)?;
        Some(self.rules.elements[element as usize])
    }

    /// `stack` without its next element.
    fn behind(&mut self, stack: u32) -> u32 {
        let (element, below) = self.stacks[stack as usize];
        self.stack(element + 1, below)
    }

    /// The stack of `element` on `below`. Where an alternative ends, its rule's follower comes next.
    fn stack(&mut self, element: u32, below: u32) -> u32 {
        if self.rules.elements[element as usize] == Element::End {
            return below;
        }
        let stacks = &mut self.stacks;
        *self.by_stack.entry((element, below)).or_insert_with(|| {
            stacks.push((element, below));
            stacks.len() as u32 - 1
        })
    }

    /// The state of `open`, each rule in front replaced by its alternatives.
    fn expand(&mut self, mut open: Vec<u32>) -> Result<u32, TooWide> {
        let rules = Arc::clone(&self.rules);
        let mut found = Vec::new();
        self.now += 1;
        let mut has_bottom = false;
        while let Some(stack) = open.pop() {
            self.work += 1;
            if self.work > WORK_MAX {
                return Err(TooWide);
            }
            if stack == BOTTOM {
                has_bottom = true;
                continue;
            }
            self.marks.resize(self.stacks.len(), 0);
            if std::mem::replace(&mut self.marks[stack as usize], self.now) == self.now {
                continue;
            }
            match self.next_element(stack) {
                Some(Element::Rule(rule)) => {
                    let behind = self.behind(stack);
                    for &start in &rules.alternatives[rule as usize] {
                        let alternative = self.stack(start, behind);
                        open.push(alternative);
                    }
                }
                _ => found.push(stack),
            }
        }
        found.extend(has_bottom.then_some(BOTTOM));
        self.state(found)
    }

    fn state(&mut self, mut stacks: Vec<u32>) -> Result<u32, TooWide> {
        stacks.sort_unstable();
        stacks.dedup();
        if let Some(&known) = self.by_state.get(&*stacks) {
            return Ok(known);
        }
        if self.states.len() >= N_STATES_MAX {
            return Err(TooWide);
        }
        let stacks = stacks.into_boxed_slice();
        let id = self.states.len() as u32;
        self.by_state.insert(stacks.clone(), id);
        self.states.push(State { stacks, ascii: Box::new([UNKNOWN; 128]), others: HashMap::new() });
        Ok(id)
    }
}

impl Rules {
    /// Whether `element` is a letter from `first` to `last`; `None` if it is none at all.
    fn has_letter(&self, element: Element, first: u32, last: u32) -> Option<bool> {
        match element {
            Element::Letter { from, to, is_not } => {
                let mut ranges = self.ranges[from as usize..to as usize].iter();
                Some(match is_not {
                    false => ranges.any(|&(low, high)| low <= last && first <= high),
                    true => !ranges.any(|&(low, high)| low <= first && last <= high),
                })
            }
            Element::AnyLetter => Some(true),
            _ => None,
        }
    }
}
