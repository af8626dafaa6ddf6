//! Defines `Form`: how llama.cpp lays out the bytes of one sequence, learned from the context that will read them.
//!
//! A *part* is what one memory of the model writes: its cells with their positions, four or two words, then one *row* a cell of
//! each tensor. llama.cpp checks shapes while it already writes into the cells, takes any position (a negative one makes a cell
//! that nobody can remove) and asserts where it trusts. So bytes are walked here first: every word must be the one that this
//! context writes itself, positions must be those that are expected, and nothing may be missing or left over. What the numbers
//! in the rows say cannot be seen here.

use std::ops::Range;

/// The parts in their order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Form {
    parts: Vec<Part>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Part {
    kind: Kind,
    words: Vec<u32>,
    tensors: Vec<Tensor>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// One cell for each position.
    Attention,
    /// One cell for each position that the last one sees.
    Window,
    /// One cell: the state at the end.
    Recurrent,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Tensor {
    /// Number format and size of a row, as they are written before the rows.
    head: [u8; 12],
    row_bytes: usize,
}

/// What bytes claim to hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Held {
    /// As llama.cpp tells it of the restored sequence: the part that begins last counts.
    pub(super) span: Range<usize>,
    /// Places of the words that name the sequence; llama.cpp does not read them.
    names: Vec<usize>,
}

/// First word of every state.
const MAGIC: u32 = 0xaf14_3cd8;

/// More layers than any model has.
const N_LAYERS_MAX: usize = 4096;

impl Form {
    /// Reads the form from the state of a sequence that holds position 0 alone; `None` if it is none of those known.
    pub(super) fn learn(state: &[u8], cuts_anywhere: bool) -> Option<Form> {
        use Kind::{Attention, Recurrent, Window};
        let whole: &[&[Kind]] = &[
            &[Attention],
            &[Attention, Window],
            &[Recurrent],
            &[Attention, Recurrent],
            &[Attention, Window, Recurrent],
        ];
        let cut: &[&[Kind]] = &[&[Attention], &[Attention, Attention]];
        let candidates = if cuts_anywhere { cut } else { whole };
        candidates.iter().find_map(|kinds| Form::learn_as(state, kinds))
    }

    fn learn_as(state: &[u8], kinds: &[Kind]) -> Option<Form> {
        let mut bytes = Bytes { all: state, at: 0 };
        bytes.word().filter(|&magic| magic == MAGIC)?;
        bytes.word()?;
        let n_parts = kinds.len();
        let mut parts = Vec::with_capacity(n_parts);
        for (index, &kind) in kinds.iter().enumerate() {
            let (count, positions) = bytes.cells(kind, &mut Vec::new())?;
            if count != 1 || positions != [0] {
                return None;
            }
            let is_last = index + 1 == n_parts;
            parts.push(Part::learn(kind, &mut bytes, is_last)?);
        }
        (bytes.at == state.len()).then_some(Form { parts })
    }

    /// The form of the recurrent part alone; `None` if there is none, or if a window goes with it.
    pub(super) fn recurrent(&self) -> Option<Form> {
        let is_windowed = self.parts.iter().any(|part| part.kind == Kind::Window);
        let part = self.parts.iter().find(|part| part.kind == Kind::Recurrent).filter(|_| !is_windowed)?;
        Some(Form { parts: vec![part.clone()] })
    }

    /// Whether V lies in rows of its own, as it does with flash attention; `None` for a model that does not attend.
    pub(super) fn has_flash_attention(&self) -> Option<bool> {
        let attends = self.parts.iter().find(|part| part.kind != Kind::Recurrent)?;
        Some(attends.words[0] == 0)
    }

    /// Walks bytes that should hold `range`, which ends where the sequence does.
    pub(super) fn check(&self, state: &[u8], range: &Range<usize>) -> Result<Held, &'static str> {
        const CUT_OFF: &str = "the bytes are cut off";
        let mut bytes = Bytes { all: state, at: 0 };
        if bytes.word().ok_or(CUT_OFF)? != MAGIC {
            return Err("the bytes are no sequence's state");
        }
        let mut names = vec![bytes.at];
        bytes.word().ok_or(CUT_OFF)?;
        let mut first = range.start;
        for part in &self.parts {
            let (count, mut positions) =
                bytes.cells(part.kind, &mut names).ok_or("the cells are not as they are saved")?;
            // The order of positions is that of the cells they lay in.
            positions.sort_unstable();
            let start = match part.kind {
                Kind::Attention => range.start,
                Kind::Window => range.end.saturating_sub(count).max(range.start),
                Kind::Recurrent => range.end - 1,
            };
            if count == 0 || !positions.into_iter().eq(start..range.end) {
                return Err("the positions are others");
            }
            first = first.max(start);
            for &word in &part.words {
                if bytes.word().ok_or(CUT_OFF)? != word {
                    return Err("the memory is laid out in another way");
                }
            }
            for tensor in &part.tensors {
                if bytes.take(tensor.head.len()).ok_or(CUT_OFF)? != tensor.head {
                    return Err("a layer has another shape");
                }
                bytes.take(tensor.row_bytes * count).ok_or(CUT_OFF)?;
            }
        }
        match bytes.at == state.len() {
            true => Ok(Held { span: first..range.end, names }),
            false => Err("there are more bytes than cells"),
        }
    }
}

impl Held {
    /// Takes the sequence's number out of the bytes: equal cells then have equal bytes.
    pub(super) fn forget_names(&self, state: &mut [u8]) {
        for &at in &self.names {
            state[at..at + 4].fill(0);
        }
    }
}

impl Part {
    fn learn(kind: Kind, bytes: &mut Bytes, is_last: bool) -> Option<Part> {
        let n_words = if kind == Kind::Recurrent { 2 } else { 4 };
        let words: Vec<u32> = (0..n_words).map_while(|_| bytes.word()).collect();
        let n_layers = usize::try_from(*words.get(1)?).ok().filter(|&n| n <= N_LAYERS_MAX)?;
        let tensors = match kind {
            Kind::Recurrent => {
                // How many of the layers recur is not written; it is the number that makes the bytes end where they do.
                let begun = bytes.at;
                (1..=n_layers).find_map(|n_recurrent| {
                    bytes.at = begun;
                    let tensors = bytes.tensors(2 * n_recurrent, false)?;
                    (is_last && bytes.at == bytes.all.len()).then_some(tensors)
                })?
            }
            Kind::Attention | Kind::Window => {
                let v_is_transposed = *words.first()? == 1;
                let mut tensors = bytes.tensors(n_layers, false)?;
                tensors.extend(bytes.tensors(n_layers, v_is_transposed)?);
                tensors
            }
        };
        Some(Part { kind, words, tensors })
    }
}

/// Bytes and how far they are read.
struct Bytes<'a> {
    all: &'a [u8],
    at: usize,
}

impl<'a> Bytes<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let taken = self.all.get(self.at..self.at.checked_add(n)?)?;
        self.at += n;
        Some(taken)
    }

    fn word(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    /// Number and positions of a part's cells. Collects the places where the sequence is named.
    fn cells(&mut self, kind: Kind, names: &mut Vec<usize>) -> Option<(usize, Vec<usize>)> {
        let attends = kind != Kind::Recurrent;
        // One stream: all sequences share one pool.
        if attends && self.word()? != 1 {
            return None;
        }
        let count = self.word()? as usize;
        // A count that the bytes cannot hold is not worth an allocation.
        if count > self.all.len() / 8 || (!attends && count != 1) {
            return None;
        }
        let mut positions = Vec::with_capacity(count);
        for _ in 0..count {
            positions.push(usize::try_from(self.word()? as i32).ok()?);
            if self.word()? != u32::from(attends) {
                return None;
            }
            if attends {
                names.push(self.at);
                self.word()?;
            }
        }
        Some((count, positions))
    }

    /// `n` tensors with one row each.
    fn tensors(&mut self, n: usize, is_transposed: bool) -> Option<Vec<Tensor>> {
        let tensor = |_| {
            let head: [u8; 12] = self.take(12)?.try_into().ok()?;
            let (four, eight) = head[4..].split_at(4);
            let (four, eight) = (
                u32::from_le_bytes(four.try_into().ok()?) as usize,
                u32::from_le_bytes(eight.try_into().ok()?) as usize,
            );
            // Transposed: size of a number and how many there are; else the size of a row in 64 bits.
            let row_bytes =
                if is_transposed { four.checked_mul(eight)? } else { four.checked_add(eight.checked_shl(32)?)? };
            self.take(row_bytes)?;
            Some(Tensor { head, row_bytes })
        };
        (0..n).map(tensor).collect()
    }
}
