//! Echoes: a client sends back what the model said, and it keeps the tokens it was said in.
//!
//! A text has many spellings in tokens, and a model does not always choose the one that a tokeniser would. Tokenised anew, an
//! answer in the history would differ from what the cells hold at the first such place, and everything behind it would be
//! computed again: 34 s in <https://github.com/ggml-org/llama.cpp/issues/11970>. So the ids of an answer are kept under the
//! stretch of text that will stand in the history: what the template wrote behind the last control token (`assistant\n`), then
//! the answer. An echo belongs to the owner it was said to.
//!
//! Calls come back as names and arguments, which the template writes anew: keys, escapes and numbers may be spelled in another
//! way. Such a turn is known by what its JSON says, but only where the history really has those calls: in a text that
//! somebody wrote, spelling is content. Where a call's marks are control tokens (`[TOOL_CALLS]`), an answer has several
//! stretches; those behind the first are kept under the control token in front of them.

use std::borrow::Cow;
use std::collections::HashSet;

use super::canonical;
use super::live::RecordId;
use super::memo::Memo;
use crate::engine::Vocab;
use crate::request::{Message, Owner, Token, ToolCall};

/// Bytes of kept ids and their keys: some 10,000 answers of 100 tokens.
const BYTES_MAX: usize = 8 << 20;
/// Bytes of one entry beside its ids: key, owner, pointers, the hash table's share.
const ENTRY_BYTES: usize = 136;
/// Templates have one opening, or two with thinking, and some marks of calls; more than this would be none that come again.
const N_OPENINGS_MAX: usize = 16;

pub(super) struct Echoes {
    kept: Memo<[u8; 32], Echo>,
    /// What stood between the last control token and an answer: only a stretch that begins like this is looked up.
    openings: HashSet<Box<str>>,
    /// Control tokens that stood within answers: what stands behind one is looked up, too.
    marks: HashSet<Token>,
}

struct Echo {
    owner: Owner,
    ids: Box<[Token]>,
}

/// An answer as it was said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spoken {
    pub owner: Owner,
    /// `Planned::opening` of the request it answered.
    pub opening: String,
    /// `Planned::record` of the request it answered.
    pub record: Option<RecordId>,
    /// The text that was sent.
    pub text: String,
    /// The calls that were sent; with them, all tokens are theirs and the text's.
    pub calls: Vec<ToolCall>,
    /// All sampled tokens; those behind the text (a stop text's) are left out here.
    pub tokens: Vec<Token>,
}

/// The calls in a request's history, and the texts in it that somebody wrote and that might look like one.
#[derive(Default)]
pub(super) struct Calls<'a> {
    /// Canonical.
    arguments: Vec<blake3::Hash>,
    texts: Vec<&'a str>,
}

impl<'a> Calls<'a> {
    pub(super) fn of(messages: &'a [Message]) -> Calls<'a> {
        let calls = messages.iter().flat_map(|message| &message.tool_calls);
        let arguments: Vec<_> = calls.map(|call| canonical::arguments(&call.arguments)).collect();
        if arguments.is_empty() {
            return Calls::default();
        }
        let written = messages.iter().filter(|message| message.tool_calls.is_empty());
        let texts = written.map(|message| message.content.trim()).filter(|text| text.contains('{')).collect();
        Calls { arguments, texts }
    }

    /// Whether `stretch` may be a turn with calls: openings of some templates stand in front of users' texts, too.
    fn may_write(&self, stretch: &str) -> bool {
        !self.arguments.is_empty() && !self.texts.iter().any(|text| stretch.trim_end().ends_with(text))
    }
}

impl Echoes {
    pub(super) fn new() -> Echoes {
        Echoes { kept: Memo::new(BYTES_MAX), openings: HashSet::new(), marks: HashSet::new() }
    }

    /// Keeps the ids of `spoken`, as it was sent and as a client that trims its end will echo it. `opening`: the tokens of
    /// `spoken.opening`.
    pub(super) fn keep(&mut self, vocab: &dyn Vocab, spoken: &Spoken, opening: &[Token]) {
        if !self.openings.contains(spoken.opening.as_str()) {
            if self.openings.len() == N_OPENINGS_MAX {
                return;
            }
            self.openings.insert(spoken.opening.as_str().into());
        }
        let controls: HashSet<Token> = vocab.control_tokens().iter().map(|(token, _)| *token).collect();
        let mut stretches = spoken.tokens.split_inclusive(|token| controls.contains(token));
        let first = split_mark(stretches.next().unwrap_or_default(), &controls);
        // A client that saw no marks sends none back.
        if (first.is_none() || spoken.calls.is_empty())
            && let Some(said) = said(vocab, spoken)
        {
            self.keep_stretch(vocab, spoken.owner, None, (&spoken.opening, opening), (&said, &spoken.tokens));
        }
        let Some((mut mark, first)) = first else { return };
        let mut keep = |mark: Option<Token>, opening: (&str, &[Token]), tokens: &[Token]| {
            if let Some(text) = text_of(vocab, tokens) {
                self.keep_stretch(vocab, spoken.owner, mark, opening, (&text, tokens));
            }
        };
        keep(None, (&spoken.opening, opening), first);
        let mut marks = Vec::new();
        for stretch in stretches {
            marks.push(mark);
            let next = split_mark(stretch, &controls);
            keep(Some(mark), ("", &[]), next.map_or(stretch, |(_, stretch)| stretch));
            mark = next.map_or(mark, |(next, _)| next);
        }
        for mark in marks {
            if self.marks.len() < N_OPENINGS_MAX {
                self.marks.insert(mark);
            }
        }
    }

    /// `opening`: what of the stretch stood there before the answer, and its tokens; `said`: the rest.
    fn keep_stretch(
        &mut self,
        vocab: &dyn Vocab,
        owner: Owner,
        mark: Option<Token>,
        opening: (&str, &[Token]),
        said: (&str, &[Token]),
    ) {
        // The whole last: what it says is known by all its tokens.
        for text in [said.0.trim_end(), said.0] {
            let Some(n) = n_tokens_of(vocab, said.1, text).filter(|&n| n > 0) else { continue };
            let ids: Box<[Token]> = opening.1.iter().chain(&said.1[..n]).copied().collect();
            let stretch = format!("{}{text}", opening.0);
            if let Some(turn) = canonical::turn(&stretch, |_| true) {
                self.insert(key(owner, b"calls", mark, turn.as_bytes()), owner, ids.clone());
            }
            self.insert(key(owner, b"text", mark, stretch.as_bytes()), owner, ids);
        }
    }

    /// The ids of a stretch that `owner` was once told. `mark`: the control token in front of it.
    pub(super) fn get(&mut self, owner: Owner, mark: Option<Token>, stretch: &str, calls: &Calls) -> Option<&[Token]> {
        let is_first = self.openings.iter().any(|opening| stretch.starts_with(&**opening));
        let mark = mark.filter(|mark| self.marks.contains(mark));
        let places = is_first.then_some(None).into_iter().chain(mark.map(Some));
        let found = places.into_iter().find_map(|mark| self.find(owner, mark, stretch, calls))?;
        self.kept.get(&found).map(|echo| &*echo.ids)
    }

    fn find(&mut self, owner: Owner, mark: Option<Token>, stretch: &str, calls: &Calls) -> Option<[u8; 32]> {
        let mut found = key(owner, b"text", mark, stretch.as_bytes());
        if self.kept.get(&found).is_none() {
            if !calls.may_write(stretch) {
                return None;
            }
            found = key(owner, b"call as written", mark, stretch.as_bytes());
            if self.kept.get(&found).is_none() {
                let turn = canonical::turn(stretch, |object| canonical::is_call(object, &calls.arguments))?;
                let ids = self.kept.get(&key(owner, b"calls", mark, turn.as_bytes()))?.ids.clone();
                // The next time it need not be read.
                self.insert(found, owner, ids);
            }
        }
        Some(found)
    }

    /// Forgets what `whose` was told; `None`: what anybody was.
    pub(super) fn forget(&mut self, whose: Option<Owner>) {
        self.kept.retain(|echo| whose.is_some_and(|whose| !whose.is_client_of(echo.owner)));
    }

    fn insert(&mut self, key: [u8; 32], owner: Owner, ids: Box<[Token]>) {
        let n_bytes = std::mem::size_of_val(&*ids) + ENTRY_BYTES;
        self.kept.insert(key, Echo { owner, ids }, n_bytes);
    }
}

/// The text of an answer's turn: what was sent, or more if there are calls or thinking in it. `None`: its end is no whole
/// character.
fn said<'a>(vocab: &dyn Vocab, spoken: &'a Spoken) -> Option<Cow<'a, str>> {
    let spelled = bytes_of(vocab, &spoken.tokens);
    // A stop text may stand behind what was sent.
    if spoken.calls.is_empty() && spelled.starts_with(spoken.text.as_bytes()) {
        return Some(Cow::Borrowed(&spoken.text));
    }
    String::from_utf8(spelled).ok().map(Cow::Owned)
}

fn text_of(vocab: &dyn Vocab, tokens: &[Token]) -> Option<String> {
    String::from_utf8(bytes_of(vocab, tokens)).ok()
}

fn bytes_of(vocab: &dyn Vocab, tokens: &[Token]) -> Vec<u8> {
    let mut spelled = Vec::new();
    tokens.iter().for_each(|&token| vocab.piece(token, &mut spelled));
    spelled
}

/// The control token that `tokens` end with, and those before it.
fn split_mark<'a>(tokens: &'a [Token], controls: &HashSet<Token>) -> Option<(Token, &'a [Token])> {
    tokens.split_last().filter(|(last, _)| controls.contains(last)).map(|(last, rest)| (*last, rest))
}

/// How many of `tokens` spell `text`; `None` if a token reaches over its end.
fn n_tokens_of(vocab: &dyn Vocab, tokens: &[Token], text: &str) -> Option<usize> {
    let mut spelled = Vec::with_capacity(text.len() + 16);
    let mut n = 0;
    while spelled.len() < text.len() {
        vocab.piece(*tokens.get(n)?, &mut spelled);
        n += 1;
    }
    (spelled == text.as_bytes()).then_some(n)
}

fn key(owner: Owner, kind: &[u8], mark: Option<Token>, stretch: &[u8]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    if let Owner::Private(id) = owner {
        hasher.update(&id);
    }
    canonical::add(&mut hasher, kind);
    canonical::add(&mut hasher, &mark.map_or([0xff; 4], |mark| mark.0.to_le_bytes()));
    canonical::add(&mut hasher, stretch);
    *hasher.finalize().as_bytes()
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;
    use crate::engine::Special;
    use crate::request::Role;

    const ALICE: Owner = Owner::Private([1; 32]);
    const BOB: Owner = Owner::Private([2; 32]);

    /// Bytes, and one token for "ab".
    struct Pairs;

    const AB: Token = Token(256);
    const MARK: Token = Token(257);

    impl Vocab for Pairs {
        fn n_tokens(&self) -> usize {
            258
        }

        fn tokenize(&self, text: &str, _: Special) -> Vec<Token> {
            text.bytes().map(|byte| Token(byte.into())).collect()
        }

        fn piece(&self, token: Token, out: &mut Vec<u8>) {
            match u8::try_from(token.0) {
                Ok(byte) => out.push(byte),
                Err(_) if token == AB => out.extend(b"ab"),
                Err(_) => {}
            }
        }

        fn is_end(&self, _: Token) -> bool {
            false
        }

        fn bos(&self) -> Option<Token> {
            None
        }

        fn control_tokens(&self) -> &[(Token, String)] {
            static CALL: LazyLock<[(Token, String); 1]> = LazyLock::new(|| [(MARK, "<tool_call>".into())]);
            &*CALL
        }
    }

    fn spoken(text: &str, tokens: &[Token]) -> Spoken {
        let opening = "assistant\n".into();
        Spoken { owner: ALICE, opening, record: None, text: text.into(), calls: vec![], tokens: tokens.to_vec() }
    }

    fn byte(byte: u8) -> Token {
        Token(byte.into())
    }

    #[test]
    fn an_answer_keeps_the_tokens_it_was_said_in_for_its_owner() {
        let mut echoes = Echoes::new();
        let opening = Pairs.tokenize("assistant\n", Special::Text);
        echoes.keep(&Pairs, &spoken("cab", &[byte(b'c'), AB]), &opening);
        let expected: Vec<Token> = opening.iter().copied().chain([byte(b'c'), AB]).collect();
        assert_eq!(echoes.get(ALICE, None, "assistant\ncab", &Calls::default()), Some(&*expected));
        assert_eq!(echoes.get(BOB, None, "assistant\ncab", &Calls::default()), None);
        assert_eq!(echoes.get(ALICE, None, "user\ncab", &Calls::default()), None);
        assert_eq!(echoes.get(ALICE, None, "assistant\nca", &Calls::default()), None);
        echoes.forget(Some(BOB));
        assert!(echoes.get(ALICE, None, "assistant\ncab", &Calls::default()).is_some());
        echoes.forget(Some(ALICE));
        assert_eq!(echoes.get(ALICE, None, "assistant\ncab", &Calls::default()), None);
    }

    #[test]
    fn a_trimmed_end_and_a_stop_text_leave_the_tokens_before_them() {
        let mut echoes = Echoes::new();
        echoes.keep(&Pairs, &spoken("ab \n", &[AB, byte(b' '), byte(b'\n'), AB]), &[]);
        assert_eq!(echoes.get(ALICE, None, "assistant\nab", &Calls::default()), Some(&[AB][..]));
        assert_eq!(
            echoes.get(ALICE, None, "assistant\nab \n", &Calls::default()),
            Some(&[AB, byte(b' '), byte(b'\n')][..])
        );
        // The stop text "b" began inside a token: nothing spells "xa" alone.
        echoes.keep(&Pairs, &spoken("xa", &[byte(b'x'), AB]), &[]);
        assert_eq!(echoes.get(ALICE, None, "assistant\nxa", &Calls::default()), None);
    }

    #[test]
    fn thinking_is_part_of_the_turn_where_the_history_has_it() {
        let mut echoes = Echoes::new();
        let turn = "<t>ab</t>cab";
        let mut tokens = vec![AB];
        tokens.splice(..0, Pairs.tokenize("<t>", Special::Text));
        tokens.extend(Pairs.tokenize("</t>c", Special::Text));
        tokens.push(AB);
        echoes.keep(&Pairs, &spoken("cab", &tokens), &[]);
        assert_eq!(echoes.get(ALICE, None, &format!("assistant\n{turn}"), &Calls::default()), Some(&*tokens));
        assert_eq!(echoes.get(ALICE, None, "assistant\ncab", &Calls::default()), None);
    }

    #[test]
    fn a_call_is_known_by_what_it_says_where_the_history_has_it() {
        let mut echoes = Echoes::new();
        let call = r#"<call>{"name":"x","arguments":{"ab":21.0,"b":"\u00e9"}}</call>"#;
        let mut tokens = Pairs.tokenize(call, Special::Text);
        let at = call.find("ab").unwrap();
        tokens.splice(at..at + 2, [AB]);
        let arguments = r#"{"b": "é", "ab": 21}"#;
        let call_of = |arguments: &str| ToolCall { id: None, name: "x".into(), arguments: arguments.into() };
        let calling = Message { tool_calls: vec![call_of(arguments)], ..Message::text(Role::Assistant, "") };
        let history = [calling.clone()];
        let calls = Calls::of(&history);
        let written = format!("assistant\n<call>\n{{\"arguments\": {arguments}, \"name\": \"x\"}}\n</call>");

        // As the text that it was sent as, and as calls that were found in it.
        for calls_sent in [vec![], vec![call_of(arguments)]] {
            let text = if calls_sent.is_empty() { call } else { "" };
            echoes.keep(&Pairs, &Spoken { calls: calls_sent, ..spoken(text, &tokens) }, &[]);
            // A text with such JSON is somebody's own.
            assert_eq!(echoes.get(ALICE, None, &written, &Calls::default()), None);
            assert_eq!(echoes.get(BOB, None, &written, &calls), None);
            assert_eq!(echoes.get(ALICE, None, &written.replace("21", "22"), &calls), None);
            for _ in 0..2 {
                assert_eq!(echoes.get(ALICE, None, &written, &calls), Some(&*tokens));
            }
            // Also where there is such a call beside it.
            let quoted = [calling.clone(), Message::text(Role::User, written.trim_start_matches("assistant\n"))];
            assert_eq!(echoes.get(ALICE, None, &written, &Calls::of(&quoted)), None);
            assert_eq!(echoes.get(ALICE, None, &written, &Calls::default()), None);
            echoes = Echoes::new();
        }
    }

    #[test]
    fn calls_between_control_tokens_keep_their_tokens() {
        let mut echoes = Echoes::new();
        let opening = Pairs.tokenize("assistant\n", Special::Text);
        let first: Vec<Token> = [&opening[..], &[AB, byte(b' ')]].concat();
        let call = r#"{"name":"x","arguments":{"ab":1}}"#;
        let at = call.find("ab").unwrap();
        let mut call = Pairs.tokenize(call, Special::Text);
        call.splice(at..at + 2, [AB]);
        let other = [byte(b'\n'), AB];
        let tokens = [&[AB, byte(b' '), MARK], &call[..], &[MARK], &other[..], &[MARK]].concat();
        let arguments = r#"{"ab": 1}"#;
        let sent = ToolCall { id: None, name: "x".into(), arguments: arguments.into() };
        echoes.keep(&Pairs, &Spoken { calls: vec![sent.clone()], ..spoken("ab ", &tokens) }, &opening);
        let history = [Message { tool_calls: vec![sent], ..Message::text(Role::Assistant, "") }];
        let calls = Calls::of(&history);
        let written = format!("\n{{\"name\": \"x\", \"arguments\": {arguments}}}\n");
        for _ in 0..2 {
            assert_eq!(echoes.get(ALICE, None, "assistant\nab ", &calls), Some(&*first));
            assert_eq!(echoes.get(ALICE, Some(MARK), &written, &calls), Some(&*call));
            assert_eq!(echoes.get(ALICE, Some(MARK), "\nab", &calls), Some(&other[..]));
        }
        for (owner, mark) in [(BOB, Some(MARK)), (ALICE, None), (ALICE, Some(AB))] {
            assert_eq!(echoes.get(owner, mark, &written, &calls), None);
        }
        assert_eq!(echoes.get(ALICE, Some(MARK), &written, &Calls::default()), None);
        assert_eq!(echoes.get(ALICE, Some(MARK), &written.replace(": 1", ": 2"), &calls), None);
    }
}
