//! What grammars allow, with the real vocabulary; llama.cpp's own search tells it, too, where it comes to an end.

use llama_cpp_2::sampling::LlamaSampler;
use llama_cpp_2::token::LlamaToken;
use llama_cpp_2::token::data::LlamaTokenData;
use llama_cpp_2::token::data_array::LlamaTokenDataArray;

use super::*;
use crate::engine::Model;
use crate::engine::llama::tests::smollm2;

fn vocab() -> &'static LlamaVocab {
    &smollm2().vocab
}

fn grammar(text: &str) -> Grammar {
    Grammar::whole(text, GrammarOrigin::Client)
}

fn tokens(text: &str) -> Vec<Token> {
    smollm2().vocab().tokenize(text, Special::Parsed)
}

fn fault(text: &str) -> String {
    match Bound::open(vocab(), &grammar(text)) {
        Ok(_) => panic!("{} is a grammar", &text[..text.len().min(60)]),
        Err(EngineError::Sampling(reason)) => reason,
        Err(error) => panic!("{error:?}"),
    }
}

/// Which tokens llama.cpp allows behind `said`.
fn oracle(text: &str, said: &[Token]) -> Vec<bool> {
    let model = &smollm2().weights;
    let mut grammar = LlamaSampler::grammar(model, text, "root").unwrap();
    said.iter().for_each(|token| grammar.try_accept(LlamaToken(token.0)).unwrap());
    let all = (0..model.n_vocab()).map(|id| LlamaTokenData::new(LlamaToken(id), 0.0, 0.0)).collect();
    let mut all = LlamaTokenDataArray::new(all, false);
    all.apply_sampler(&mut grammar);
    all.data.iter().map(|candidate| candidate.logit() > f32::NEG_INFINITY).collect()
}

fn is_whole(token: Token) -> bool {
    let mut text = Vec::new();
    vocab().spelling(token, &mut text);
    String::from_utf8(text).is_ok()
}

const TEXTS: [(&str, &str); 9] = [
    (
        r#"root ::= "{\"room\":\"" [a-z ]{1,12} "\",\"warm\":" ("true" | "false") "}""#,
        r#"{"room":"my attic","warm":true}"#,
    ),
    (
        r#"root ::= string (", " string)*
string ::= "\"" ([^"\\\x7F\x00-\x1F] | [\\] (["\\bfnrt] | "u" [0-9a-fA-F]{4}))* "\"""#,
        r#""a \"b\" é\n", "日本語 🙂 \u00e9", """#,
    ),
    ("root ::= (item \"\\n\")+ # a list\nitem ::= \"- \" [^\\r\\n]+", "- bread\n- salt and\n"),
    ("root ::= ([0-9] | [1-9] [0-9]{0,3}) (\".\" [0-9]+)?", "1024.5"),
    ("root ::= nested\nnested ::= \"(\" nested? \")\" | [a-c]*", "((abc))"),
    ("root ::= .{3} [é-ü日]? [^z]", "aé🙂日x"),
    ("root ::= \"a\"? \"a\"? \"a\"? \"b\"", "aab"),
    ("root ::= <|im_start|> \"user\" | \"<|im_start|>\" \"x\" | !<|im_start|> \"y\"", "<|im_start|>x"),
    ("root ::= <[1]> \"user\" | \"x\"", "<|im_start|>user"),
];

#[test]
fn what_is_allowed_is_what_llama_cpp_allows() {
    for (text, said) in TEXTS {
        let mut bound = Bound::open(vocab(), &grammar(text)).unwrap();
        let said = tokens(said);
        for n in 0..=said.len() {
            let mut allowed = Vec::new();
            bound.allow(vocab(), &mut allowed).unwrap();
            let expected = oracle(text, &said[..n]);
            // Where a token is only forbidden, llama.cpp forbids halves of characters, too.
            let is_known = |id: &usize| !text.contains('!') || is_whole(Token(*id as i32));
            let differ: Vec<usize> =
                (0..allowed.len()).filter(|&id| allowed[id] != expected[id]).filter(is_known).collect();
            assert_eq!(differ, [0; 0], "{text} behind {n} of {said:?}");
            if let Some(&token) = said.get(n) {
                assert!(bound.allows(token, vocab()).unwrap(), "{text}: {n} of {said:?}");
                for id in (0..49_152).step_by(397) {
                    assert_eq!(bound.allows(Token(id), vocab()).unwrap(), allowed[id as usize], "{text}: {id}");
                }
                bound.accept(token, vocab()).unwrap();
            }
        }
    }
}

#[test]
fn what_is_forgotten_changes_nothing() {
    let mut bound = Bound::open(vocab(), &grammar("root ::= \"(\" (root | [a-z]{0,2000}) \")\"")).unwrap();
    for token in tokens(&format!("{}{}", "(".repeat(3_000), "ab".repeat(999))) {
        bound.accept(token, vocab()).unwrap();
    }
    for token in tokens(&format!("b{}", ")".repeat(2_999))) {
        bound.accept(token, vocab()).unwrap();
    }
    let end = tokens("<|im_end|>")[0];
    assert!(!bound.allows(end, vocab()).unwrap());
    bound.accept(tokens(")")[0], vocab()).unwrap();
    assert!(bound.allows(end, vocab()).unwrap());
    assert!(bound.accept(tokens(")")[0], vocab()).is_err());
}

#[test]
fn many_ways_through_a_text_are_no_more_work_than_one() {
    // Each of these keeps llama.cpp busy for longer than anybody waits.
    let optional = format!("root ::= {} \"x\"", "[a ]? ".repeat(200));
    let twice: String = (0..60).map(|n| format!("r{n} ::= r{0} | r{0} \"a\"\n", n + 1)).collect();
    let twice = format!("root ::= r0\n{twice}r60 ::= \"b\"");
    let deep: String = (0..4_000).map(|n| format!("r{n} ::= r{}\n", n + 1)).collect();
    let deep = format!("root ::= r0\n{deep}r4000 ::= \"b\"");
    for (text, said) in [(&optional, "aa a x"), (&deep, "b")] {
        let mut bound = Bound::open(vocab(), &grammar(text)).unwrap();
        let mut allowed = Vec::new();
        bound.allow(vocab(), &mut allowed).unwrap();
        for token in tokens(said) {
            bound.accept(token, vocab()).unwrap();
        }
        assert!(bound.walk.can_end(bound.place));
    }
    assert!(fault(&twice).contains("too many ways"));
}

#[test]
fn a_fault_is_named_with_its_place() {
    for (text, expected) in [
        ("", "there is no rule `root`"),
        ("root", "line 1, column 5: expecting ::="),
        ("root ::= missing", "there is no rule `missing`"),
        ("other ::= \"a\"", "there is no rule `root`"),
        ("root ::= root \"a\"", "the rule `root` can begin with itself"),
        ("root ::= a\na ::= (b c)* a \"x\"\nb ::= \"\" | \"y\"\nc ::= b", "the rule `a` can begin with itself"),
        ("root ::= \"a\" |\n  [b] )", "line 2, column 7"),
        ("root ::= \"a\"{3000000}", "more than 1048576 letters"),
        ("root ::= \"a\"{3000}", "number of repetitions exceeds"),
        ("root ::= \"a\"{99999999999999999999999}", "more than"),
        ("root ::= \"a\"{2,1}x", "at least 2 and at most 1"),
        ("root ::= (\"a\"{2,#\n1})", "at least 2 and at most 1"),
        ("root ::= [a-", "unexpected end"),
        ("root ::= \"a", "unexpected end"),
        ("root ::= \"a\0b\"", "NUL"),
        ("%llguidance {}", "line 1, column 1: expecting name"),
        ("root ::= <tool> \"a\"", "<tool> is no token"),
    ] {
        let fault = fault(text);
        assert!(fault.contains(expected), "{text}: {fault}");
    }
    let nested = |start: &str| format!("{start}{}\"a\"{}", "(".repeat(100_000), ")".repeat(100_000));
    // Remarks end where llama.cpp sees them end.
    for start in ["root ::= ", "# \\\nroot ::= ", "#\rroot ::= ", "root ::= \"\\\\\" "] {
        let tools = Grammar { origin: GrammarOrigin::Tools, ..grammar(&nested(start)) };
        let Err(EngineError::Sampling(reason)) = Bound::open(vocab(), &tools) else { panic!("{start}") };
        assert!(reason.contains("brackets"), "{reason}");
    }
    assert!(fault(&format!("root ::= \"{}\"", "a".repeat(100_000))).contains("bytes"));
    assert!(fault(&format!("root ::= \"{}\"{{2000}}", "a".repeat(60_000))).contains("repetitions"));
    // Brackets within texts and remarks are no nesting.
    Bound::open(vocab(), &grammar(&format!("root ::= \"{0}\" [{0}] # {0}\n", "(".repeat(100)))).unwrap();
}

#[test]
fn a_token_that_would_break_what_it_sets_off_may_not_come() {
    let lazy = Grammar {
        is_lazy: true,
        triggers: vec![Trigger::Word("<call>".into()), Trigger::Word("call:".into())],
        ..grammar("root ::= (\"<call>\" | \"call:\") \"x\"")
    };
    let mut bound = Bound::open(vocab(), &lazy).unwrap();
    for token in tokens("a <call < call> <ca") {
        bound.accept(token, vocab()).unwrap();
        assert!(bound.is_waiting());
    }
    bound.accept(tokens("ll")[0], vocab()).unwrap();
    let broken = (0..49_152).map(Token).find(|&token| {
        let mut text = Vec::new();
        vocab().spelling(token, &mut text);
        text.starts_with(b">") && text.len() > 1 && text[1] != b'x'
    });
    assert!(!bound.allows(broken.unwrap(), vocab()).unwrap());
    assert!(bound.allows(tokens("!")[0], vocab()).unwrap());
    bound.accept(tokens(">")[0], vocab()).unwrap();
    assert!(!bound.is_waiting());
    assert!(!bound.allows(tokens("!")[0], vocab()).unwrap());
    assert!(bound.allows(tokens("x")[0], vocab()).unwrap());
}
