//! Conversations as clients have them, over the chat templates that models really come with (`models/templates/`).
//!
//! A *talk* is one client's conversation, planned request by request at times of our choosing, one token a byte. Each prompt
//! is read as the model would: the last thing it says of room, lamp and time must be the request's own, whatever hob moved;
//! everybody's words stand in it whole and in order; and what goes on computes what is new, to the token. What a template
//! itself makes of a growing conversation is measured by the same one with a system text that never changes.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use hob::engine::llama::{LoadedModel, Weights};
use hob::engine::{ChatTemplate, Model, Special, Vocab};
use hob::prompt::{Cause, Layout, Moment, Planned, Planner, PromptError, Spoken};
use hob::request::{Client, Dialect, LayoutMode, Message, Priority, Request, Role, Sampling, Token, ToolCall, Wanted};
use proptest::prelude::*;

use crate::models;

const TEMPLATES: [&str; 8] = [
    "Qwen-Qwen2.5-7B-Instruct",
    "Qwen-Qwen3-0.6B",
    "meta-llama-Llama-3.1-8B-Instruct",
    "meta-llama-Llama-3.2-3B-Instruct",
    "google-gemma-2-2b-it",
    "google-gemma-4-31B-it",
    "mistralai-Mistral-Nemo-Instruct-2407",
    "Mistral-Small-3.2-24B-Instruct-2506",
];

/// 2026-11-30 20:06:10 UTC.
const START: i64 = 1_796_069_170;
/// Layouts change only where no text is likely to be held any more.
const A_WHILE: i64 = 4000;
/// A clock in a tool loop may be this old.
const LOOP_S: i64 = 60;

/// Bytes as tokens, and the control tokens of all these templates.
struct Letters(Vec<(Token, String)>);

impl Letters {
    fn new() -> Letters {
        let controls = "<|im_start|> <|im_end|> <|start_header_id|> <|end_header_id|> <|eot_id|> <start_of_turn> <end_of_turn> \
                        <|turn> <turn|> <|tool> <tool|> <|tool_call> <tool_call|> <|tool_response> <tool_response|> \
                        <|channel> <channel|> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_CALLS] \
                        [TOOL_RESULTS] [/TOOL_RESULTS] [SYSTEM_PROMPT] [/SYSTEM_PROMPT] [ARGS] [CALL_ID]";
        Letters((256..).map(Token).zip(controls.split_whitespace().map(str::to_owned)).collect())
    }

    fn read(&self, tokens: &[Token]) -> String {
        let mut bytes = Vec::new();
        for token in tokens {
            match self.0.iter().find(|(control, _)| control == token) {
                Some((_, spelling)) => bytes.extend(spelling.bytes()),
                None => self.piece(*token, &mut bytes),
            }
        }
        String::from_utf8(bytes).unwrap()
    }
}

impl Vocab for Letters {
    fn n_tokens(&self) -> usize {
        256 + self.0.len()
    }

    fn tokenize(&self, text: &str, special: Special) -> Vec<Token> {
        let mut tokens = Vec::with_capacity(text.len());
        let mut at = 0;
        while at < text.len() {
            let rest = &text.as_bytes()[at..];
            let control = self.0.iter().find(|(_, spelling)| rest.starts_with(spelling.as_bytes()));
            match control.filter(|_| special == Special::Parsed) {
                Some((token, spelling)) => {
                    tokens.push(*token);
                    at += spelling.len();
                }
                None => {
                    tokens.push(Token(rest[0].into()));
                    at += 1;
                }
            }
        }
        tokens
    }

    fn piece(&self, token: Token, out: &mut Vec<u8>) {
        out.extend(u8::try_from(token.0));
    }

    fn is_end(&self, _: Token) -> bool {
        false
    }

    fn bos(&self) -> Option<Token> {
        None
    }

    fn control_tokens(&self) -> &[(Token, String)] {
        &self.0
    }
}

struct Family {
    name: &'static str,
    template: Arc<dyn ChatTemplate>,
}

/// The templates, read by llama.cpp's own Jinja; none, and a word about it, if they are not there.
fn families() -> &'static [Family] {
    static FAMILIES: OnceLock<Vec<Family>> = OnceLock::new();
    FAMILIES.get_or_init(|| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/templates");
        if !folder.join(".verified").is_file() {
            eprintln!("skipped: {} is missing, scripts/templates.py fetches it", folder.display());
            return Vec::new();
        }
        let load = |name: &'static str| {
            let text = std::fs::read_to_string(folder.join(format!("{name}.jinja"))).unwrap();
            let model = LoadedModel::load(&models::smollm2(), Weights::None, Some(&text), |_| {}).unwrap();
            Family { name, template: model.template() }
        };
        TEMPLATES.map(load).into()
    })
}

/// Each template in both modes that move something.
fn everywhere(test: impl Fn(&mut House)) {
    for family in families() {
        for mode in [LayoutMode::Safe, LayoutMode::Optimise] {
            eprintln!("{}, {mode:?}", family.name);
            test(&mut House::new(family, mode));
        }
    }
}

/// What is so when a request is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct State {
    now: i64,
    room: &'static str,
    lamp: &'static str,
}

impl State {
    fn time(self) -> String {
        let of_day = self.now.rem_euclid(24 * 3600);
        format!("{:02}:{:02}:{:02}", of_day / 3600, of_day / 60 % 60, of_day % 60)
    }

    fn system(self) -> Message {
        let State { room, lamp, .. } = self;
        let time = self.time();
        Message::text(
            Role::System,
            format!(
                "You are the voice of this house and answer briefly.\nCurrent time: {time}\n\nDevices:\n- heater: warm\n\
                 - lamp: {lamp}\n- door: shut\n\nUse the tools that you are given and never guess a state.\n\
                 You are in area {room}."
            ),
        )
    }

    fn after(self, seconds: i64) -> State {
        State { now: self.now + seconds, ..self }
    }
}

/// hob's planner, and one that sends what it is given.
struct House {
    planner: Planner,
    plain: Planner,
    letters: Arc<Letters>,
    start: State,
}

impl House {
    /// It has seen that rooms and lamps change.
    fn new(family: &Family, mode: LayoutMode) -> House {
        let mut house = House::unlearnt(family, mode);
        for (room, lamp) in [("Kitchen", "on"), ("Bedroom", "off"), ("Kitchen", "on")] {
            house.start = State { now: house.start.now + 700, room, lamp };
            house.ask(house.start, &[user("Hello")]);
        }
        house.start.now += A_WHILE;
        house
    }

    fn unlearnt(family: &Family, mode: LayoutMode) -> House {
        let letters = Arc::new(Letters::new());
        let planner = || Planner::new(letters.clone(), family.template.clone(), "model".into(), vec![]).unwrap();
        let layout = Layout { mode, n_context_tokens: 1 << 20, file: None };
        let (planner, plain) = (planner().with_layout(layout), planner());
        House { planner, plain, letters, start: State { now: START, room: "Kitchen", lamp: "on" } }
    }

    fn plan_plain(&mut self, state: State, turns: &[Message]) -> Result<Planned, PromptError> {
        self.plain.plan(&request(&sent(state, turns)), &Moment::utc(state.now))
    }

    /// Plans the request and checks what always holds.
    fn ask(&mut self, state: State, turns: &[Message]) -> Planned {
        let planned = self.planner.plan(&request(&sent(state, turns)), &Moment::utc(state.now)).unwrap();
        let as_sent = self.plan_plain(state, turns).unwrap();
        let text = self.letters.read(&planned.prompt.tokens);
        let as_sent = self.letters.read(&as_sent.prompt.tokens);

        // The last value that the prompt shows is the true one.
        let last = |text: &str, before: &str, after: char| {
            let (_, rest) = text.rsplit_once(before)?;
            Some(rest.split(after).next().unwrap_or(rest).to_owned())
        };
        for (before, after, value) in [("\nYou are in area ", '.', state.room), ("\n- lamp: ", '\n', state.lamp)] {
            let shown = last(&text, before, after);
            assert!(shown.is_some() || last(&as_sent, before, after).is_none(), "{before:?} is lost: {text}");
            assert!(shown.is_none_or(|shown| shown == value), "{before:?} is {value} now: {text}");
        }
        let in_loop = turns.last().is_some_and(|turn| turn.role == Role::Tool);
        let shown = last(&text, "Current time: ", '\n');
        let may_be_shown = |age: i64| shown.as_ref().is_none_or(|shown| *shown == state.after(-age).time());
        assert!((0..=if in_loop { LOOP_S } else { 0 }).any(may_be_shown), "it is {} now: {text}", state.time());

        // What was said stands whole and in order, as often as it was said.
        let mut rest = text.as_str();
        for turn in turns {
            let said = turn.content.trim();
            let at = rest.find(said).unwrap_or_else(|| panic!("{said:?} is not whole or not in its place: {text}"));
            rest = &rest[at + said.len()..];
        }
        planned
    }
}

fn sent(state: State, turns: &[Message]) -> Vec<Message> {
    [state.system()].into_iter().chain(turns.iter().cloned()).collect()
}

fn request(messages: &[Message]) -> Request {
    let light = r#"{"type": "function", "function": {"name": "light", "description": "Switches a light.", "parameters": {"type": "object", "properties": {"on": {"type": "boolean"}}}}}"#;
    Request {
        model: "model".into(),
        messages: messages.to_vec(),
        tools: vec![light.into()],
        sampling: Sampling::default(),
        wanted: Wanted::default(),
        n_logprobs: None,
        max_tokens: None,
        stop: vec![],
        client: client(),
        conversation: None,
        layout: None,
        priority: Priority::default(),
    }
}

fn client() -> Client {
    Client { name: "satellites".into(), salt: None, dialect: Dialect::OpenAi }
}

fn user(text: impl Into<String>) -> Message {
    Message::text(Role::User, text)
}

fn assistant(text: impl Into<String>) -> Message {
    Message::text(Role::Assistant, text)
}

/// Mistral wants nine letters.
const CALL_ID: &str = "call12345";

fn call() -> Message {
    let call = ToolCall { id: Some(CALL_ID.into()), name: "light".into(), arguments: r#"{"on": true}"#.into() };
    Message { tool_calls: vec![call], ..assistant("") }
}

fn result(text: &str) -> Message {
    Message { tool_call_id: Some(CALL_ID.into()), name: Some("light".into()), ..Message::text(Role::Tool, text) }
}

/// See the module's head.
struct Talk {
    turns: Vec<Message>,
    /// As it was when the talk began, for comparison.
    state: State,
    last: Option<(Planned, Vec<Token>)>,
}

impl Talk {
    fn new(state: State) -> Talk {
        Talk { turns: Vec::new(), state, last: None }
    }

    /// The next request, which must compute no more than what is new.
    fn ask(&mut self, house: &mut House, state: State, turn: Message) -> Planned {
        self.turns.push(turn);
        let planned = house.ask(state, &self.turns);
        let frozen = house.plan_plain(self.state, &self.turns).unwrap().prompt.tokens;
        if let Some((last, last_frozen)) = &self.last {
            let n_new_frozen = frozen.len() - n_common(last_frozen, &frozen);
            let n_new = planned.prompt.tokens.len() - n_common(&last.prompt.tokens, &planned.prompt.tokens);
            if frozen.starts_with(last_frozen) {
                assert!(planned.prompt.tokens.starts_with(&last.prompt.tokens), "it only grows");
                assert_eq!(n_new, n_new_frozen + n_live(&planned) - n_live(last), "what is new and nothing else");
            } else {
                // The template itself moves things.
                assert!(n_new <= n_new_frozen + n_live(&planned), "{n_new} instead of {n_new_frozen}");
            }
            assert_eq!(planned.live_cause, Cause::Appended);
        }
        self.last = Some((planned.clone(), frozen));
        planned
    }

    /// What the model says to the last request.
    fn answer(&mut self, house: &mut House, answer: Message) {
        if let Some((planned, _)) = self.last.as_ref().filter(|_| answer.tool_calls.is_empty()) {
            house.planner.remember(&Spoken {
                owner: client().owner(),
                opening: planned.opening.clone(),
                record: planned.record,
                text: answer.content.clone(),
                calls: Vec::new(),
                tokens: house.letters.tokenize(&answer.content, Special::Text),
            });
        }
        self.turns.push(answer);
    }
}

fn n_common(left: &[Token], right: &[Token]) -> usize {
    left.iter().zip(right).take_while(|(left, right)| left == right).count()
}

/// Bytes of live blocks, which are tokens here.
fn n_live(planned: &Planned) -> usize {
    planned.sections.iter().filter(|section| section.name == "live").map(|section| section.n_bytes).sum()
}

#[test]
fn the_same_words_from_two_satellites_with_interleaved_tool_loops_see_their_own_room() {
    everywhere(|house| {
        let states = ["Kitchen", "Bedroom"].map(|room| State { room, ..house.start });
        let mut talks = states.map(Talk::new);
        for step in 0..12 {
            for (at, talk) in talks.iter_mut().enumerate() {
                let state = states[at].after(14 * step + 7 * at as i64);
                if step % 2 == 0 {
                    talk.ask(house, state, user(format!("Light {step} on")));
                    talk.answer(house, call());
                } else {
                    talk.ask(house, state, result("done"));
                    talk.answer(house, assistant("It is on."));
                }
            }
        }
    });
}

#[test]
fn asking_again_after_ten_minutes_computes_the_question_and_the_new_time() {
    everywhere(|house| {
        let state = house.start;
        let mut talk = Talk::new(state);
        talk.ask(house, state, user("Good evening"));
        talk.answer(house, assistant("Hello."));
        let first = talk.ask(house, state.after(20), user("How late is it?"));
        let again = house.ask(state.after(620), &talk.turns);
        let text = house.letters.read(&first.prompt.tokens);
        // Up to the second live block, or as far as the template lets it.
        let shared = house.letters.read(&again.prompt.tokens[..n_common(&first.prompt.tokens, &again.prompt.tokens)]);
        let n_frozen = talk.last.as_ref().map(|(_, frozen)| frozen.len()).unwrap();
        assert!(shared.len() >= text.rfind("[As of").unwrap(), "{shared}");
        assert!(again.prompt.tokens.len() <= n_frozen + n_live(&again));
        // Which of the two the client kept is known by the answer.
        talk.answer(house, assistant("Six past eight."));
        talk.ask(house, state.after(640), user("Thanks"));
    });
}

#[test]
fn an_edit_of_the_second_of_five_turns_computes_what_follows_the_first() {
    everywhere(|house| {
        let state = house.start;
        let mut talk = Talk::new(state);
        let mut second = None;
        for turn in 0..5 {
            let planned = talk.ask(house, state.after(90 * turn), user(format!("Question {turn}")));
            if turn == 1 {
                second = Some((planned, talk.last.clone().unwrap().1));
            }
            talk.answer(house, assistant(format!("Answer {turn}.")));
        }
        let mut edited = Talk { turns: talk.turns[..2].to_vec(), state, last: second };
        edited.turns.push(user("Another question"));
        let planned = house.ask(state.after(500), &edited.turns);
        assert_eq!(planned.live_cause, Cause::Appended);
        let (before, frozen_before) = edited.last.as_ref().unwrap();
        let frozen = house.plan_plain(state, &edited.turns).unwrap().prompt.tokens;
        let n_new_frozen = frozen.len() - n_common(frozen_before, &frozen);
        let n_new = planned.prompt.tokens.len() - n_common(&before.prompt.tokens, &planned.prompt.tokens);
        assert!(n_new <= n_new_frozen + n_live(&planned), "{n_new} instead of {n_new_frozen}");
        // And it goes on from there.
        edited.turns.pop();
        edited.last = None;
        edited.ask(house, state.after(500), user("Another question"));
        edited.answer(house, assistant("Well."));
        edited.ask(house, state.after(510), user("And then?"));
    });
}

#[test]
fn twenty_five_rounds_with_a_history_trimmed_to_41_messages_are_true() {
    everywhere(|house| {
        let mut talk = Talk::new(house.start);
        for round in 0..25 {
            let state = State { room: ["Kitchen", "Bedroom"][round % 2], ..house.start.after(20 * round as i64) };
            for (turn, answer) in [(user(format!("Question {round}")), call()), (result("done"), assistant("It is."))] {
                talk.turns.push(turn);
                let n_over = talk.turns.len().saturating_sub(40);
                talk.turns.drain(..n_over);
                house.ask(state, &talk.turns);
                talk.turns.push(answer);
            }
        }
    });
}

#[test]
fn a_system_or_developer_message_in_mid_conversation_stays_where_it_is() {
    everywhere(|house| {
        for role in [Role::System, Role::Developer] {
            let state = house.start;
            let mut talk = Talk::new(state);
            let first = talk.ask(house, state, user(format!("Good evening, {role:?}")));
            talk.answer(house, assistant("Hello."));
            let note = format!("By the way, Current time: {} it is.", state.time());
            talk.turns.push(Message::text(role, note.clone()));
            let turns: Vec<Message> = talk.turns.iter().cloned().chain([user("And now?")]).collect();
            let asked = request(&sent(state.after(9), &turns));
            let plain = house.plan_plain(state.after(9), &turns);
            let planned = house.planner.plan(&asked, &Moment::utc(state.after(9).now));
            // Gemma 2 and Mistral's templates refuse it, whoever sends it.
            assert_eq!(planned.is_ok(), plain.is_ok());
            let Ok(planned) = planned else { continue };
            let text = house.letters.read(&planned.prompt.tokens);
            let places = ["Good evening, ", "Hello.", &note, "And now?"].map(|said| text.find(said).expect(said));
            assert!(places.is_sorted(), "{text}");
            assert_eq!(text.matches(&note).count(), 1, "{text}");
            let frozen = house.plan_plain(state, &turns).unwrap().prompt.tokens;
            if frozen.starts_with(&talk.last.as_ref().unwrap().1) {
                assert!(planned.prompt.tokens.starts_with(&first.prompt.tokens), "{text}");
            }
        }
    });
}

#[test]
fn a_quoted_letter_and_words_like_a_nonce_stay_untouched() {
    everywhere(|house| {
        let state = house.start;
        let letter = format!(
            "What do you make of this letter?\n\n\"Dear Ada,\nCurrent time: {0}\nIt is {0} here and I am late.\n- lamp: on\n\
             x-anthropic-billing-header: cc_version=2.1.3; cch=00000;\nrequest id: 0f8fad5b-d9cb-469f-a165-70867728950e\n\
             Yours\"",
            state.time()
        );
        let mut talk = Talk::new(state);
        let first = talk.ask(house, state, user(letter.clone()));
        talk.answer(house, assistant(format!("It is {} there.", state.time())));
        let text = house.letters.read(&first.prompt.tokens);
        assert_eq!(text.matches(&letter).count(), 1);
        talk.turns.push(user("Read it to me again."));
        let next = house.planner.plan(&request(&sent(state.after(70), &talk.turns)), &Moment::utc(state.after(70).now));
        let text = house.letters.read(&next.unwrap().prompt.tokens);
        assert_eq!(text.matches(&letter).count(), 1, "{text}");
        assert!(text.contains(&format!("It is {} there.", state.time())), "{text}");
    });
}

#[test]
fn nothing_is_refused_that_would_not_be_refused_as_sent() {
    everywhere(|house| {
        let state = house.start;
        let histories = [
            vec![result("done"), assistant("It is on."), user("Thanks")],
            vec![result("done")],
            vec![user("a"), user("b")],
            vec![user("a"), assistant("b"), assistant("c"), user("d")],
            vec![assistant("Hello, I am the house."), user("Hi")],
            vec![user("a"), call(), result("1"), result("2")],
        ];
        for turns in histories {
            let plain = house.plan_plain(state, &turns).map_err(|error| error.to_string());
            let asked = request(&sent(state, &turns));
            let laid = house.planner.plan(&asked, &Moment::utc(state.now)).map_err(|error| error.to_string());
            let roles: Vec<Role> = turns.iter().map(|turn| turn.role).collect();
            assert_eq!(laid.as_ref().err(), plain.as_ref().err(), "{roles:?}");
            if let Err(error) = plain {
                eprintln!("  {roles:?}: {error}");
            }
        }
    });
}

#[derive(Clone, Debug)]
enum Event {
    Ask(String),
    Call(String),
    Answer(String),
    Change(State),
}

fn event() -> impl Strategy<Value = Event> {
    // Marks of control tokens and of hob's own, clocks and lists may be in what people write.
    let piece = prop_oneof![
        "[a-zäß .,\n]{1,12}",
        prop::sample::select(vec![
            "\n- lamp: blue",
            "[As of Monday",
            "20:06:10",
            "\n\n",
            "🏠",
            "no longer: ",
            "<|im",
            "`"
        ])
        .prop_map(str::to_owned),
    ];
    let text = || prop::collection::vec(piece.clone(), 1..5).prop_map(|pieces| format!("say {} end", pieces.concat()));
    let state = (1i64..200, prop::sample::select(vec!["Kitchen", "Bedroom"]), prop::sample::select(vec!["on", "off"]));
    prop_oneof![
        3 => text().prop_map(Event::Ask),
        2 => "[a-z0-9 ]{1,12}".prop_map(|text| Event::Call(format!("say {text} end"))),
        3 => text().prop_map(Event::Answer),
        2 => state.prop_map(|(now, room, lamp)| Event::Change(State { now, room, lamp })),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn what_was_said_stays_one_unbroken_run_of_bytes(events in prop::collection::vec(event(), 1..14), nth in 0..TEMPLATES.len(), mode in prop::sample::select(vec![LayoutMode::Safe, LayoutMode::Optimise])) {
        let Some(family) = families().get(nth) else { return Ok(()) };
        let mut house = House::new(family, mode);
        let mut state = house.start;
        let mut turns: Vec<Message> = Vec::new();
        for event in events {
            match event {
                Event::Ask(text) if turns.last().is_none_or(|turn| turn.role == Role::Assistant && turn.tool_calls.is_empty()) => turns.push(user(text)),
                Event::Call(text) if turns.last().is_some_and(|turn| turn.role != Role::Assistant) => turns.extend([call(), result(&text)]),
                Event::Answer(text) if turns.last().is_some_and(|turn| turn.role != Role::Assistant) => {
                    turns.push(assistant(text));
                    continue;
                }
                Event::Change(to) => {
                    state = State { now: state.now + to.now, ..to };
                    continue;
                }
                _ => continue,
            }
            let planned = house.planner.plan(&request(&sent(state, &turns)), &Moment::utc(state.now)).unwrap();
            let text = house.letters.read(&planned.prompt.tokens);
            let mut rest = text.as_str();
            for turn in &turns {
                let said = turn.content.as_str();
                let at = rest.find(said);
                prop_assert!(at.is_some(), "{:?} is not whole or not in its place: {}", said, text);
                rest = &rest[at.unwrap() + said.len()..];
            }
        }
    }
}
