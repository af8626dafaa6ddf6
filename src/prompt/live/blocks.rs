//! A system text as blocks: paragraphs' lines, list items with their children, table rows, headings.
//!
//! A *block* is what moves or stays as one: its content and the white space behind it (its gap). All blocks one after
//! the other are the text, byte for byte. Nothing here knows which of them change.

use std::ops::Range;

use super::digest::Digest;

/// Lines shorter than this are not wrapped prose: a line that goes on below is cut near the writer's right margin, and
/// nobody's margin is narrower.
const WRAPPED_BYTES_MIN: usize = 50;
/// Longer lines are paragraphs. The longest line that Home Assistant adds for a device has 140 bytes.
const LINE_BYTES_MAX: usize = 240;

#[derive(Clone, Debug)]
pub(super) struct Block<'a> {
    /// Without the white space behind it.
    pub(super) content: &'a str,
    /// White space up to the next block.
    pub(super) gap: &'a str,
    pub(super) kind: Kind,
    /// Of an item or a row: the digest of the block its list stands under.
    pub(super) list: Option<Digest>,
    pub(super) digest: Digest,
    /// It holds the time, or something made up for this request alone.
    pub(super) is_clock: bool,
    /// Which of the leading messages it is from.
    pub(super) message_idx: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub(super) enum Kind {
    /// A short line.
    Line,
    /// A paragraph: a long line, or several where a sentence goes on below.
    Prose,
    /// `key: value`, `key = value`.
    KeyValue,
    /// A list item with its children.
    Item,
    /// A table row.
    Row,
    /// A Markdown heading, or a line that ends in a colon.
    Heading,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Prose => "prose",
            Kind::Line => "line",
            Kind::KeyValue => "key",
            Kind::Item => "item",
            Kind::Row => "row",
            Kind::Heading => "heading",
        }
    }
}

/// What tells which text holds the time, or something made up for one request.
#[derive(Clone, Copy)]
pub(super) struct Clocks<'c> {
    /// Whether that is all that a line says.
    pub(super) is_clock: &'c dyn Fn(&str) -> bool,
    /// The sentences of a line that say it, in order, with the white space behind them.
    pub(super) sentences: &'c dyn Fn(&str) -> Vec<Range<usize>>,
}

impl Clocks<'static> {
    /// Nothing is a clock.
    pub(super) const NONE: Clocks<'static> = Clocks { is_clock: &|_| false, sentences: &|_| Vec::new() };
}

/// The blocks of `text`, appended to `blocks`.
pub(super) fn split<'a>(text: &'a str, message_idx: usize, clocks: Clocks, blocks: &mut Vec<Block<'a>>) {
    let lines = Lines::of(text);
    let first_idx = blocks.len();
    let mut start = 0;
    let mut line_idx = lines.skip_blank(0);
    while line_idx < lines.0.len() {
        let (after, kind) = lines.block_at(line_idx);
        let next_idx = lines.skip_blank(after);
        let end = lines.0.get(next_idx).map_or(text.len(), |line| line.start);
        push(&text[start..end], kind, message_idx, clocks, blocks);
        (start, line_idx) = (end, next_idx);
    }
    link_lists(blocks, first_idx);
}

/// One block, or several where only some sentences of a line are a clock.
fn push<'a>(text: &'a str, kind: Kind, message_idx: usize, clocks: Clocks, blocks: &mut Vec<Block<'a>>) {
    let mut add = |text: &'a str, is_clock: bool| {
        let content = text.trim_end();
        let is_line = kind == Kind::Prose && content.len() <= LINE_BYTES_MAX && !content.trim_start().contains('\n');
        blocks.push(Block {
            content,
            gap: &text[content.len()..],
            kind: if is_line { Kind::Line } else { kind },
            list: None,
            digest: Digest::of(content.as_bytes()),
            is_clock,
            message_idx,
        });
    };
    let content = text.trim_end();
    if content.lines().any(clocks.is_clock) {
        return add(text, true);
    }
    let mut start = 0;
    if kind == Kind::Prose && !content.trim_start().contains('\n') {
        for range in (clocks.sentences)(content) {
            if !text[start..range.start].trim().is_empty() {
                add(&text[start..range.start], false);
                start = range.start;
            }
            let end = if range.end == content.len() { text.len() } else { range.end };
            add(&text[start..end], true);
            start = end;
        }
    }
    if start < text.len() {
        add(&text[start..], false);
    }
}

/// Tells items and rows which list they are in.
fn link_lists(blocks: &mut [Block], first_idx: usize) {
    let mut open: Option<Digest> = None;
    for block_idx in first_idx..blocks.len() {
        if !matches!(blocks[block_idx].kind, Kind::Item | Kind::Row) {
            // A clock above a list may change or move; the list is under what stands above both.
            if !blocks[block_idx].is_clock {
                open = None;
            }
            continue;
        }
        let list = *open.get_or_insert_with(|| {
            let above = blocks[first_idx..block_idx].iter().rev().find(|above| !above.is_clock);
            // The first block's list stands under nothing.
            above.map_or(Digest::of(b""), |above| above.digest)
        });
        blocks[block_idx].list = Some(list);
    }
}

struct Lines<'a>(Vec<Line<'a>>);

struct Line<'a> {
    start: usize,
    /// With its indent, without white space at its end.
    text: &'a str,
    class: Class,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Blank,
    Fence,
    Item,
    Row,
    Title,
    KeyValue,
    Prose,
}

impl<'a> Lines<'a> {
    fn of(text: &'a str) -> Lines<'a> {
        let mut start = 0;
        let lines = text.split_inclusive('\n').map(|line| {
            let at = start;
            start += line.len();
            let line = line.trim_end();
            Line { start: at, text: line, class: classify(line.trim_start()) }
        });
        Lines(lines.collect())
    }

    fn skip_blank(&self, from: usize) -> usize {
        self.0[from.min(self.0.len())..]
            .iter()
            .position(|line| line.class != Class::Blank)
            .map_or(self.0.len(), |n| from + n)
    }

    /// The block that begins at line `at`: the index behind its last line, and its kind.
    fn block_at(&self, at: usize) -> (usize, Kind) {
        let first = &self.0[at];
        let mut after = at + 1;
        match first.class {
            Class::Fence => {
                let closing = self.0[after..].iter().position(|line| line.class == Class::Fence);
                (closing.map_or(self.0.len(), |n| after + n + 1), Kind::Prose)
            }
            Class::Item => {
                let indent = indent(first.text);
                let is_child = |line: &Line| line.class != Class::Blank && self::indent(line.text) > indent;
                while self.0.get(after).is_some_and(is_child) {
                    after += 1;
                }
                (after, Kind::Item)
            }
            Class::Row => (after, Kind::Row),
            Class::Title => (after, Kind::Heading),
            Class::KeyValue => (after, if first.text.ends_with(':') { Kind::Heading } else { Kind::KeyValue }),
            Class::Prose | Class::Blank => {
                while let Some(next) = self.0.get(after)
                    && next.class == Class::Prose
                    && goes_on(self.0[after - 1].text, next.text)
                {
                    after += 1;
                }
                (after, if self.0[after - 1].text.ends_with(':') { Kind::Heading } else { Kind::Prose })
            }
        }
    }
}

fn classify(line: &str) -> Class {
    if line.is_empty() {
        Class::Blank
    } else if line.starts_with("```") || line.starts_with("~~~") {
        Class::Fence
    } else if is_item(line) {
        Class::Item
    } else if line.starts_with('|') {
        Class::Row
    } else if line.trim_start_matches('#').starts_with(' ') && line.starts_with('#') {
        Class::Title
    } else if is_key_value(line) {
        Class::KeyValue
    } else {
        Class::Prose
    }
}

fn is_item(line: &str) -> bool {
    let digits = line.bytes().take_while(u8::is_ascii_digit).count();
    let rest = if (1..=3).contains(&digits) {
        line[digits..].strip_prefix(['.', ')'])
    } else {
        line.strip_prefix(['-', '*', '+', '•', '–'])
    };
    rest.is_some_and(|rest| rest.starts_with([' ', '\t']))
}

/// `Working directory: /home`, `light.kitchen = on`, `mode=eco`: a short key without a sentence's marks, and a value.
fn is_key_value(line: &str) -> bool {
    let Some((key, value)) = line.split_once(": ").or_else(|| line.split_once('=')) else { return false };
    key.len() <= 48
        && !value.trim().is_empty()
        && key.split_whitespace().count().wrapping_sub(1) < 4
        && key.starts_with(char::is_alphanumeric)
        && !key.contains(['.', '!', '?', ',', '"', '(']) | (key.contains('.') && !key.contains(' '))
}

/// Whether the sentence of line `above` goes on in line `below`.
fn goes_on(above: &str, below: &str) -> bool {
    let ends = above.trim_end_matches(['"', '\'', ')', ']', '*', '_', '”', '“', '»', '«']);
    if ends.ends_with(['.', '!', '?', ':', ';', '。', '！', '？']) {
        return false;
    }
    let below = below.trim_start();
    above.ends_with(',')
        || (above.len() >= WRAPPED_BYTES_MIN && below.starts_with(|c: char| !c.is_uppercase() && c != '<'))
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn blocks(text: &str) -> Vec<Block<'_>> {
        let mut blocks = Vec::new();
        let is_clock = |line: &str| line.starts_with("The time is") && !line.contains("Be");
        let sentences = |line: &str| {
            let start = line.find("The time is");
            let end = |start| line[start..].find("Be").map_or(line.len(), |n| start + n);
            start.map(|start| start..end(start)).into_iter().collect()
        };
        split(text, 0, Clocks { is_clock: &is_clock, sentences: &sentences }, &mut blocks);
        blocks
    }

    fn check(text: &str, expected: &[(&str, Kind)]) {
        let found: Vec<(&str, Kind)> = blocks(text).iter().map(|block| (block.content, block.kind)).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_line_is_a_block_and_a_wrapped_sentence_is_one() {
        let wrapped = "You ARE equipped to answer questions about the current state of\nthe home by retrieving it.";
        check(
            &format!("Answer truthfully.\n{wrapped}\n\nBe brief."),
            &[("Answer truthfully.", Kind::Line), (wrapped, Kind::Prose), ("Be brief.", Kind::Line)],
        );
    }

    #[test]
    fn an_item_holds_its_children_and_knows_its_list() {
        let text = "Devices:\n- names: AC\n  domain: switch\n- names: Fan\n\nmode: eco\n| a | b |\n";
        check(
            text,
            &[
                ("Devices:", Kind::Heading),
                ("- names: AC\n  domain: switch", Kind::Item),
                ("- names: Fan", Kind::Item),
                ("mode: eco", Kind::KeyValue),
                ("| a | b |", Kind::Row),
            ],
        );
        let blocks = blocks(text);
        assert_eq!(blocks[2].list, Some(blocks[0].digest));
        assert_eq!(blocks[4].list, Some(blocks[3].digest));
    }

    #[test]
    fn a_clock_sentence_parts_from_its_line() {
        let text = "You are Al. The time is 12:04 on 3. Mai 2026. Be nice.\nThe time is 12.";
        let found: Vec<(&str, &str, bool)> =
            blocks(text).iter().map(|block| (block.content, block.gap, block.is_clock)).collect();
        assert_eq!(
            found,
            [
                ("You are Al.", " ", false),
                ("The time is 12:04 on 3. Mai 2026.", " ", true),
                ("Be nice.", "\n", false),
                ("The time is 12.", "", true)
            ]
        );
        let found: Vec<&str> = blocks("  The time is 12. Be nice.").iter().map(|block| block.content).collect();
        assert_eq!(found, ["  The time is 12.", "Be nice."]);
    }

    proptest! {
        #[test]
        fn blocks_give_the_text_back(text in "([-|#:=. \n\r\t1aAé,`]|- |The time is| Be|```\n|\n  ){0,60}") {
            let blocks = blocks(&text);
            let joined: String = blocks.iter().flat_map(|block| [block.content, block.gap]).collect();
            // White space alone is no block.
            if !text.trim().is_empty() {
                prop_assert_eq!(joined, text);
            } else {
                prop_assert!(blocks.is_empty());
            }
        }
    }
}
