//! Answers under rules: what the sampler obeys, and what is told beside the text.

use super::*;
use crate::engine::{AnswerRules, Grammar, GrammarOrigin, ThinkingRules};

const PROMPT: &str = "Is the oven off?";

fn under(text: &str) -> AnswerRules {
    let grammar = Grammar::whole(text, GrammarOrigin::Tools);
    AnswerRules { grammar: Some(grammar), ..AnswerRules::default() }
}

fn ask(rules: AnswerRules, n_logprobs: Option<usize>, max_tokens: usize) -> Vec<Event> {
    let house = house(Setup::default());
    let (events, receiver) = mpsc::channel(4096);
    let submission = house.submission(Owner::Public, PROMPT, max_tokens, events);
    house.handle.submit(Submission { rules: Arc::new(rules), n_logprobs, ..submission }).unwrap();
    let mut receiver = receiver;
    std::iter::from_fn(|| receiver.blocking_recv()).collect()
}

fn said(events: &[Event]) -> String {
    events.iter().filter_map(|event| if let Event::Text(text) = event { Some(text.as_str()) } else { None }).collect()
}

fn finished(events: &[Event]) -> Finish {
    let Some(Event::Done(done)) = events.last() else { panic!("{:?}", events.last()) };
    done.finish
}

#[test]
fn a_bound_answer_is_what_its_grammar_allows() {
    let events = ask(under("{\"off\":true}"), None, 100);
    assert_eq!((said(&events).as_str(), finished(&events)), ("{\"off\":true}", Finish::Stop));
    let events = ask(under("{\"off\":true}"), None, 4);
    assert_eq!((said(&events).as_str(), finished(&events)), ("{\"of", Finish::Length));
}

#[test]
fn a_text_of_the_template_ends_an_answer_and_stays_unsaid() {
    let rules = AnswerRules { stops: vec!["</end>".into()], ..under("It is off.</end> And on.") };
    let events = ask(rules, None, 100);
    assert_eq!((said(&events).as_str(), finished(&events)), ("It is off.", Finish::Stop));
}

#[test]
fn control_tokens_are_said_where_the_answer_is_read_by_them() {
    let control = Token(256);
    let text = "a<|im_start|>b";
    assert_eq!(said(&ask(under(text), None, 100)), "ab");
    assert_eq!(said(&ask(AnswerRules { spelled: vec![control], ..under(text) }, None, 100)), text);
}

#[test]
fn spent_thinking_is_ended_in_the_models_stead() {
    let token = |letter: u8| vec![Token(letter.into())];
    let thinking = ThinkingRules { start: token(b'<'), ends: vec![token(b'>')], budget: Some(3), opening: "<".into() };
    let rules = AnswerRules { thinking: Some(thinking), ..under("abcdef") };
    assert_eq!(said(&ask(rules, None, 100)), "abc>def");
}

#[test]
fn each_token_is_told_with_its_chances_before_its_text() {
    let events = ask(under("off"), Some(2), 100);
    let (mut told, mut n_said) = (Vec::new(), 0);
    for event in &events {
        match event {
            Event::Logprobs(more) => told.extend(more.iter().cloned()),
            Event::Text(text) => {
                n_said += text.len();
                assert!(n_said <= told.len(), "a token of one byte is told first");
            }
            _ => {}
        }
    }
    let bytes: Vec<u8> = told.iter().flat_map(|logprob| logprob.token.bytes.clone()).collect();
    assert_eq!(bytes, b"off");
    for logprob in &told {
        assert_eq!(logprob.top.len(), 2);
        assert!(logprob.top[0].logprob >= logprob.top[1].logprob && logprob.top[0].logprob <= 0.0);
        assert!(logprob.token.logprob <= logprob.top[0].logprob);
    }
    assert!(ask(under("off"), None, 100).iter().all(|event| !matches!(event, Event::Logprobs(_))));
}
