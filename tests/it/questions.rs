//! Defines the sixty household questions of `fixtures/questions/`, the requests a client makes of them, and what a right answer is.
//!
//! A *question* is asked at a time and in a room of one day, after some of the household's states have changed: time, states
//! and room stand in the system text, as Home Assistant writes them. Scoring asks for the right tool with the right room, or
//! for the right fact; how it is said does not count. Nothing here knows a model: `real::meaning` asks one.

use std::fmt::{self, Display, Formatter};

use hob::prompt::Moment;
use serde_json::{Value, json};

/// What the house's model is called.
pub(crate) const NAME: &str = "house-model";
/// Tokens of an answer: two calls.
pub(crate) const N_ANSWER_MAX: usize = 64;
/// 2026-06-12, a Friday, at midnight. The house's clock is UTC.
const MIDNIGHT: i64 = 1_781_222_400;
const DATE: &str = "Friday, 12 June 2026";

const DAY: &str = include_str!("fixtures/questions/day.txt");
const SYSTEM: &str = include_str!("fixtures/questions/system.txt");
const EARLIER: &str = include_str!("fixtures/questions/earlier.json");
const TOOLS: &str = include_str!("../../assets/demo/tools.json");

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Class {
    /// A command that names its room.
    Named,
    /// A command for the room it is asked in.
    Here,
    State,
    Time,
    List,
    /// For what the house does not have.
    Refusal,
}

impl Class {
    pub(crate) const ALL: [Class; 6] =
        [Class::Named, Class::Here, Class::State, Class::Time, Class::List, Class::Refusal];
}

impl Display for Class {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        f.pad(match self {
            Class::Named => "commands that name their room",
            Class::Here => "commands for the room asked in",
            Class::State => "states",
            Class::Time => "times and dates",
            Class::List => "lists",
            Class::Refusal => "what the house has not",
        })
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Question {
    /// `None`: asked before the day begins, and not counted.
    pub(crate) class: Option<Class>,
    /// `HH:MM`.
    time: &'static str,
    area: &'static str,
    states: Vec<(&'static str, &'static str)>,
    pub(crate) text: &'static str,
    /// Any one of them.
    right: Vec<Right>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Right {
    Call {
        tool: &'static str,
        /// Name, and what is in its value.
        arguments: Vec<(&'static str, &'static str)>,
    },
    Say {
        /// The spellings of each fact.
        facts: Vec<Vec<&'static str>>,
        not: Vec<&'static str>,
    },
    Refuse,
}

impl Question {
    /// When it is asked.
    pub(crate) fn moment(&self) -> Moment {
        let (hours, minutes) = self.time.split_once(':').expect("a time has a colon");
        let minutes = hours.parse::<i64>().unwrap() * 60 + minutes.parse::<i64>().unwrap();
        Moment::utc(MIDNIGHT + minutes * 60)
    }

    /// The request as its client sends it.
    pub(crate) fn body(&self) -> Value {
        let states: Vec<String> = self.states.iter().map(|(name, state)| format!("- {name}: {state}")).collect();
        let area = self.area[..1].to_uppercase() + &self.area[1..];
        let system = [("states", states.join("\n").as_str()), ("time", self.time), ("date", DATE), ("area", &area)]
            .iter()
            .fold(SYSTEM.trim_end().to_owned(), |text, (name, value)| text.replace(&format!("{{{name}}}"), value));
        let mut messages = vec![json!({ "role": "system", "content": system })];
        messages.extend(serde_json::from_str::<Vec<Value>>(EARLIER).unwrap());
        messages.push(json!({ "role": "user", "content": self.text }));
        let n_max = if self.class.is_some() { N_ANSWER_MAX } else { 1 };
        let tools: Value = serde_json::from_str(TOOLS).unwrap();
        json!({ "model": NAME, "messages": messages, "tools": tools, "max_tokens": n_max, "temperature": 0 })
    }

    pub(crate) fn is_right(&self, answer: &str) -> bool {
        let calls = calls(answer);
        let has_call = !calls.is_empty() || answer.contains("\"name\":") || answer.contains("<tool_call>");
        self.right.iter().any(|right| match right {
            Right::Call { tool, arguments } => match &calls[..] {
                [(name, given)] => name == tool && arguments.iter().all(|&(name, value)| holds(&given[name], value)),
                _ => false,
            },
            Right::Say { facts, not } => {
                let says = |words: &&str| plain(answer).contains(&plain(words));
                !has_call && facts.iter().all(|spellings| spellings.iter().any(says)) && !not.iter().any(says)
            }
            Right::Refuse => !has_call && !answer.trim().is_empty(),
        })
    }
}

/// All questions of the day in their order, those before it included.
pub(crate) fn day() -> Vec<Question> {
    let mut states: Vec<(&str, &str)> = Vec::new();
    let mut questions = Vec::new();
    for paragraph in DAY.split("\n\n") {
        let mut lines = paragraph.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
        let Some(head) = lines.next() else { continue };
        if head == "[states]" {
            states = lines.map(state).collect();
            continue;
        }
        let (class, head) = head[1..].split_once("] ").expect("a question begins with its class");
        let mut parts = head.split("; ");
        let (time, area) = parts.next().and_then(|part| part.split_once(", ")).expect("time and room");
        for (name, now) in parts.map(state) {
            let known = states.iter_mut().find(|(known, _)| *known == name);
            let known = known.unwrap_or_else(|| panic!("no state is called {name}"));
            assert_ne!(known.1, now, "{time}: {name} has not changed");
            known.1 = now;
        }
        let class = match class {
            "before" => None,
            "named" => Some(Class::Named),
            "here" => Some(Class::Here),
            "state" => Some(Class::State),
            "time" => Some(Class::Time),
            "list" => Some(Class::List),
            "refusal" => Some(Class::Refusal),
            _ => panic!("no class is called {class}"),
        };
        let text = lines.next().expect("a question has words");
        let right = lines.map(|line| right(line.strip_prefix("-> ").expect("what is right"))).collect();
        questions.push(Question { class, time, area, states: states.clone(), text, right });
    }
    questions
}

fn state(line: &'static str) -> (&'static str, &'static str) {
    line.split_once(": ").unwrap_or_else(|| panic!("a state has a name: {line}"))
}

fn right(line: &'static str) -> Right {
    let (kind, rest) = line.split_once(' ').unwrap_or((line, ""));
    match kind {
        "refuse" => Right::Refuse,
        "call" => {
            let mut words = rest.split(' ');
            let tool = words.next().expect("a call names its tool");
            Right::Call { tool, arguments: words.map(|word| word.split_once('=').expect("key=value")).collect() }
        }
        "say" => {
            let (not, facts): (Vec<&str>, Vec<&str>) = rest.split(", ").partition(|part| part.starts_with("not "));
            Right::Say {
                facts: facts.iter().map(|fact| fact.split('|').collect()).collect(),
                not: not.iter().map(|part| &part["not ".len()..]).collect(),
            }
        }
        _ => panic!("nothing right is called {kind}"),
    }
}

/// The calls written out in an answer, by name and arguments: objects with a name, whatever stands around them.
fn calls(answer: &str) -> Vec<(String, Value)> {
    let mut calls = Vec::new();
    let mut rest = answer;
    while let Some(start) = rest.find('{') {
        let mut values = serde_json::Deserializer::from_str(&rest[start..]).into_iter::<Value>();
        match values.next() {
            Some(Ok(value)) => {
                rest = &rest[start + values.byte_offset()..];
                if let Some(name) = value["name"].as_str() {
                    calls.push((name.to_owned(), value["arguments"].clone()));
                }
            }
            _ => {
                rest = &rest[start + 1..];
                // Broken off by the answer's bound: it was called all the same.
                if rest.trim_start().starts_with("\"name\"") {
                    calls.push((String::new(), Value::Null));
                }
            }
        }
    }
    calls
}

/// Whether an argument is `value`, or a text or a list with it inside.
fn holds(argument: &Value, value: &str) -> bool {
    match argument {
        Value::Array(items) => items.iter().any(|item| holds(item, value)),
        Value::String(text) => plain(text).contains(&plain(value)),
        Value::Null | Value::Object(_) => false,
        Value::Number(number) => value.parse().is_ok_and(|value| number.as_f64() == Some(value)),
        Value::Bool(_) => false,
    }
}

/// Lower-case words with a space on each side, without the marks around them.
fn plain(text: &str) -> String {
    let text = text.to_lowercase().replace(['_', '°'], " ");
    let words = text.split_whitespace().map(|word| word.trim_matches(|c: char| !c.is_alphanumeric()));
    format!(" {} ", words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" "))
}

mod tests {
    use std::collections::HashSet;
    use std::sync::Arc;

    use hob::engine::Vocab;
    use hob::engine::simulated::{ByteVocab, ChatMl};
    use hob::http::parse_chat;
    use hob::prompt::{Layout, Planned, Planner};
    use hob::request::LayoutMode;

    use super::*;

    #[test]
    fn sixty_different_questions_are_ten_of_each_class_in_the_order_of_the_day() {
        let day = day();
        let asked: Vec<&Question> = day.iter().filter(|question| question.class.is_some()).collect();
        assert_eq!(asked.len(), 60);
        for class in Class::ALL {
            assert_eq!(asked.iter().filter(|question| question.class == Some(class)).count(), 10, "{class}");
        }
        assert_eq!(asked.iter().map(|question| question.text).collect::<HashSet<_>>().len(), 60);
        assert!(day.windows(2).all(|pair| pair[0].time < pair[1].time), "later questions are asked later");
        for question in asked {
            assert!(!question.right.is_empty(), "{}", question.text);
        }
    }

    /// What is asked for is what the request says, and no answer is right for everything.
    #[test]
    fn a_right_call_names_a_tool_of_the_house_and_a_right_fact_stands_in_the_request() {
        let tools: Vec<Value> = serde_json::from_str(TOOLS).unwrap();
        for question in day() {
            let system = plain(question.body()["messages"][0]["content"].as_str().unwrap());
            for right in &question.right {
                match right {
                    Right::Call { tool, arguments } => {
                        let found = tools.iter().find(|known| known["function"]["name"] == *tool);
                        let known = &found.unwrap_or_else(|| panic!("{tool}"))["function"]["parameters"]["properties"];
                        assert!(arguments.iter().all(|(name, _)| known[name].is_object()), "{}", question.text);
                        let room = arguments.iter().find(|(name, _)| ["room", "cover"].contains(name));
                        if question.class == Some(Class::Here) {
                            assert!(question.area.contains(room.unwrap().1), "{}", question.text);
                        }
                    }
                    // The rest has to be concluded.
                    Right::Say { facts, .. } if question.class == Some(Class::State) => {
                        let stands = |fact: &Vec<&str>| fact.iter().any(|spelling| system.contains(&plain(spelling)));
                        assert!(facts.iter().all(stands), "{}", question.text);
                    }
                    Right::Say { .. } | Right::Refuse => {}
                }
            }
            assert!(question.class.is_none() || !question.is_right(""), "{}", question.text);
        }
    }

    #[test]
    fn an_answer_is_right_by_what_it_does_or_says() {
        let check = |right_line: &'static str, answer: &str, expected: bool| {
            let question = Question { right: vec![right(right_line)], ..day().remove(0) };
            assert_eq!(question.is_right(answer), expected, "{right_line}: {answer}");
        };
        let call = "call set_light room=living state=on brightness=40";
        let args = r#""arguments": {"room": "living_room", "state": "on", "brightness": 40}"#;
        check(call, &format!("{{\"name\": \"set_light\", {args}}}"), true);
        check(call, &format!("Sure:\n```json\n{{\"name\": \"set_light\", {args}}}\n```"), true);
        check(call, &format!("<tool_call>{{\"name\": \"set_light\", {args}}}</tool_call>"), true);
        check(call, &format!("{{\"name\": \"set_climate\", {args}}}"), false);
        check(call, &format!("{{\"name\": \"set_light\", {}}}", args.replace("living", "map")), false);
        check(call, &format!("{{\"name\": \"set_light\", {}}}", args.replace("40", "4")), false);
        check(call, &format!("{{\"name\": \"set_light\", {}}}", args.replace("\"on\"", "\"only\"")), false);
        check(call, &format!("{{\"name\": \"set_light\", {args}}} {{\"name\": \"set_light\", {args}}}"), false);
        check(call, &format!("{{\"name\": \"set_light\", {args}"), false);
        check(call, &format!("{{\"name\": \"set_light\", {args}}} {{\"name\": \"set_li"), false);
        check(call, "I have turned on the lights in the living room at 40 percent.", false);
        let items = "call edit_list list=shopping items=milk items=eggs";
        let list = |items: &str| {
            format!(r#"{{"name": "edit_list", "arguments": {{"list": "shopping list", "items": {items}}}}}"#)
        };
        check(items, &list(r#"["fresh milk", "eggs"]"#), true);
        check(items, &list(r#""milk, eggs""#), true);
        check(items, &list(r#"["milk"]"#), false);
        check(items, &list("null"), false);
        check("say 18.5", "It is 18.5°C in the hall.", true);
        check("say 18.5", "It is 118.5 °C in the hall.", false);
        check("say 06:44|6:44", "It's 6:44.", true);
        check("say 12 june|june 12, friday", "Friday, June 12.", true);
        check("say 12 june|june 12, friday", "June 12.", false);
        check("say on, not off", "They are on.", true);
        check("say on, not off", "The one on the left is off.", false);
        check("say on, not off", "Conversation.", false);
        check("say 18.5", r#"{"name": "get_state", "arguments": {"place": "hall 18.5"}}"#, false);
        check("refuse", "There is no sauna.", true);
        check("refuse", r#"{"name": "set_light", "arguments": {"room": "sauna""#, false);
        check("refuse", " \n", false);
    }

    /// The plans of the day, one after the other.
    fn plans(mode: LayoutMode) -> Vec<Planned> {
        let planner = Planner::new(
            Arc::new(ByteVocab::new()),
            Arc::new(ChatMl { takes_tools: true }),
            NAME.to_owned(),
            Vec::new(),
        )
        .unwrap();
        let mut planner = planner.with_layout(Layout { mode, n_context_tokens: 1 << 20, file: None });
        let plan = |question: Question| {
            let request = parse_chat(question.body().to_string().as_bytes(), "satellite").unwrap();
            planner.plan(&request, &question.moment()).unwrap()
        };
        day().into_iter().map(plan).collect()
    }

    fn spelled(planned: &Planned) -> String {
        let mut bytes = Vec::new();
        planned.prompt.tokens.iter().for_each(|&token| ByteVocab::new().piece(token, &mut bytes));
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn observe_and_off_leave_every_byte_of_the_day_and_observe_tells_what_would_move() {
        let (off, observed) = (plans(LayoutMode::Off), plans(LayoutMode::Observe));
        for ((off, observed), question) in off.iter().zip(&observed).zip(day()) {
            assert_eq!(off.prompt, observed.prompt, "{}", question.text);
            let body = question.body();
            let system = body["messages"][0]["content"].as_str().unwrap();
            let text = spelled(off);
            assert!(text.contains(system) && text.contains(&format!("user\n{}", question.text)), "{text}");
        }
        assert!(off.iter().all(|planned| planned.moved.is_empty()));
        // The clock, the list of states, the room.
        assert!(observed[observed.len() - 60..].iter().all(|planned| planned.moved.len() == 3));
    }

    /// What changes in it are a clock, list items and a short line at the very end.
    #[test]
    fn the_day_is_laid_out_by_safe_as_by_optimise() {
        let prompts = |mode| plans(mode).into_iter().map(|planned| planned.prompt).collect::<Vec<_>>();
        assert!(prompts(LayoutMode::Safe) == prompts(LayoutMode::Optimise));
    }

    #[test]
    fn what_changes_in_the_day_stands_in_front_of_each_question_once_it_may_move() {
        for mode in [LayoutMode::Safe, LayoutMode::Optimise] {
            for (planned, question) in plans(mode).iter().zip(day()).filter(|(_, question)| question.class.is_some()) {
                let text = spelled(planned);
                let (stays, live) = text.rsplit_once("[As of Friday 2026-06-12 ").expect("a live block");
                let body = question.body();
                let area = body["messages"][0]["content"].as_str().unwrap().lines().last().unwrap();
                let hall = question.states.iter().find(|(name, _)| *name == "hall temperature").unwrap().1;
                for moved in [
                    format!("The time is {} on {DATE}.", question.time),
                    format!("- hall temperature: {hall}"),
                    area.to_owned(),
                ] {
                    assert!(live.contains(&moved) && !stays.contains(&moved), "{mode:?}: {moved}\n{text}");
                }
                assert!(live.contains(&format!("\n\n{}", question.text)), "{text}");
            }
        }
    }
}
