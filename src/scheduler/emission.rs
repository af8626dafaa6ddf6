//! From token pieces to text that may leave the house: whole UTF-8 characters, nothing of a stop text.
//!
//! A piece may end inside a character, and a stop text may begin in one token and end in another; what could still become
//! either is held back.

/// Text on its way out of one sequence.
#[derive(Debug, Default)]
pub(super) struct Emission {
    stops: Vec<String>,
    /// Bytes that are no whole character yet.
    bytes: Vec<u8>,
    /// Text that may be the beginning of a stop text.
    held_back: String,
    /// The stop text that came, as an index.
    stopped_by: Option<usize>,
}

/// What one more piece brought.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Emitted {
    /// Possibly empty.
    Text(String),
    /// A stop text came; this is the last text before it.
    Stopped(String),
}

impl Emission {
    pub(super) fn new(stops: Vec<String>) -> Emission {
        Emission { stops, ..Emission::default() }
    }

    /// Takes the bytes of one token.
    pub(super) fn push(&mut self, piece: &[u8]) -> Emitted {
        self.bytes.extend_from_slice(piece);
        let whole = self.take_whole_characters();
        self.held_back.push_str(&whole);
        let found = self.stops.iter().enumerate().filter_map(|(idx, stop)| Some((self.held_back.find(stop)?, idx)));
        if let Some((at, stop_idx)) = found.min() {
            self.stopped_by = Some(stop_idx);
            self.held_back.truncate(at);
            return Emitted::Stopped(std::mem::take(&mut self.held_back));
        }
        let n_keep = self.stops.iter().map(|stop| overlap(&self.held_back, stop)).max().unwrap_or(0);
        let keep = self.held_back.split_off(self.held_back.len() - n_keep);
        Emitted::Text(std::mem::replace(&mut self.held_back, keep))
    }

    /// What is left when the answer ends without a stop text. Half a character becomes U+FFFD.
    pub(super) fn finish(&mut self) -> String {
        let mut text = std::mem::take(&mut self.held_back);
        text.push_str(&String::from_utf8_lossy(&std::mem::take(&mut self.bytes)));
        text
    }

    /// The stop text that came.
    pub(super) fn stopped_by(&self) -> Option<&str> {
        self.stopped_by.map(|idx| self.stops[idx].as_str())
    }

    fn take_whole_characters(&mut self) -> String {
        let mut text = String::new();
        loop {
            match std::str::from_utf8(&self.bytes) {
                Ok(whole) => {
                    text.push_str(whole);
                    self.bytes.clear();
                    return text;
                }
                Err(error) => {
                    let n_whole = error.valid_up_to();
                    text.push_str(std::str::from_utf8(&self.bytes[..n_whole]).expect("valid up to here"));
                    let n_bad = error.error_len();
                    if n_bad.is_some() {
                        text.push(char::REPLACEMENT_CHARACTER);
                    }
                    self.bytes.drain(..n_whole + n_bad.unwrap_or(0));
                    if n_bad.is_none() {
                        return text;
                    }
                }
            }
        }
    }
}

/// Length of the longest end of `text` that is a beginning of `stop`.
fn overlap(text: &str, stop: &str) -> usize {
    let longest = text.len().min(stop.len().saturating_sub(1));
    (1..=longest).rev().find(|&n| text.as_bytes().ends_with(&stop.as_bytes()[..n])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run(stops: &[&str], pieces: &[&[u8]]) -> (String, bool) {
        let mut emission = Emission::new(stops.iter().map(|&stop| stop.to_owned()).collect());
        let mut text = String::new();
        for piece in pieces {
            match emission.push(piece) {
                Emitted::Text(more) => text += &more,
                Emitted::Stopped(last) => return (text + &last, true),
            }
        }
        (text + &emission.finish(), false)
    }

    #[test]
    fn a_character_in_two_tokens_comes_out_whole() {
        let mut emission = Emission::new(vec![]);
        assert_eq!(emission.push(b"a\xc3"), Emitted::Text("a".into()));
        assert_eq!(emission.push(b"\xa4b"), Emitted::Text("äb".into()));
    }

    #[test]
    fn bytes_that_are_no_character_are_replaced_and_end_nothing() {
        assert_eq!(run(&[], &[b"a\xff", b"b\xc3"]), ("a\u{fffd}b\u{fffd}".into(), false));
    }

    #[test]
    fn the_stop_text_that_came_first_is_named() {
        let mut emission = Emission::new(["b", "abc", "abx"].map(str::to_owned).to_vec());
        assert_eq!((emission.push(b"xa"), emission.stopped_by()), (Emitted::Text("x".into()), None));
        assert_eq!((emission.push(b"bc"), emission.stopped_by()), (Emitted::Stopped("".into()), Some("abc")));
    }

    #[test]
    fn a_stop_text_across_tokens_is_found_and_not_sent() {
        assert_eq!(run(&["END"], &[b"one E", b"N", b"D two"]), ("one ".into(), true));
        assert_eq!(run(&["END"], &[b"one E", b"N", b"O"]), ("one ENO".into(), false));
        assert_eq!(run(&["b", "abc"], &[b"xab"]), ("xa".into(), true), "the first to begin wins");
        assert_eq!(run(&["ää"], &["ä".as_bytes(), "ä!".as_bytes()]), ("".into(), true));
    }

    proptest! {
        #[test]
        fn however_text_is_cut_into_pieces_it_comes_out_the_same(
            text in "[abcä€]{0,24}", stop in "[abcä]{1,3}", cuts in proptest::collection::vec(0..64usize, 0..8)
        ) {
            let bytes = text.as_bytes();
            let mut borders: Vec<usize> = cuts.into_iter().map(|cut| cut % (bytes.len() + 1)).collect();
            borders.extend([0, bytes.len()]);
            borders.sort_unstable();
            let pieces: Vec<&[u8]> = borders.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
            let expected = match text.find(&stop) {
                Some(at) => (text[..at].to_owned(), true),
                None => (text.clone(), false),
            };
            prop_assert_eq!(run(&[&stop], &pieces), expected);
        }
    }
}
