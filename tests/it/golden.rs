//! Golden plans: what hob does to the prompts of clients that are known, as people would read it.
//!
//! A *golden plan* shows a request's sections with their classes and bytes, what left the client's system text for which
//! message, and the live block of the last turn. Vocabulary and template are the simulated ones; the moments are chosen.
//! Home Assistant's requests are its recorded ones; the other clients' are written after what they really send.

use std::sync::Arc;

use hob::engine::Vocab;
use hob::engine::simulated::{ByteVocab, ChatMl};
use hob::http::parse_chat;
use hob::prompt::{Layout, Moment, Planned, Planner};
use hob::request::LayoutMode;
use serde_json::{Value, json};

use crate::house::MODEL;

/// 2026-11-30 18:27:50 UTC, a Monday, when the first of Home Assistant's days was recorded.
const START: i64 = 1_796_063_270;
const HOUR: i64 = 3600;
const BERLIN: (i32, &str) = (3600, "CET");

/// A household, its planner, and what its clock shows.
struct Home {
    planner: Planner,
    now: i64,
    zone: (i32, &'static str),
}

impl Home {
    fn new(mode: LayoutMode) -> Home {
        let template = Arc::new(ChatMl { takes_tools: true });
        let planner = Planner::new(Arc::new(ByteVocab::new()), template, MODEL.into(), Vec::new()).unwrap();
        let planner = planner.with_layout(Layout { mode, n_context_tokens: usize::MAX, file: None });
        Home { planner, now: START, zone: (0, "UTC") }
    }

    /// Plans what a client sends after `seconds`.
    fn ask_after(&mut self, seconds: i64, body: &Value) -> Planned {
        self.now += seconds;
        let request = parse_chat(body.to_string().as_bytes(), "hall").unwrap();
        let (offset_s, zone) = self.zone;
        self.planner.plan(&request, &Moment { unix_s: self.now, offset_s, zone: zone.into() }).unwrap()
    }
}

fn asking(system: impl Into<Value>, question: &str) -> Value {
    let messages = json!([{ "role": "system", "content": system.into() }, { "role": "user", "content": question }]);
    json!({ "model": MODEL, "messages": messages })
}

/// The first of Home Assistant's recorded requests whose label begins with `label`.
fn recorded(label: &str) -> Value {
    let recording = include_str!("fixtures/home-assistant/ollama.jsonl");
    let lines = recording.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let mut line = lines.into_iter().find(|line| line["label"].as_str().unwrap().starts_with(label)).unwrap();
    let body = &mut line["body"];
    json!({ "model": MODEL, "messages": body["messages"].take(), "tools": body["tools"].take() })
}

fn text(planned: &Planned) -> String {
    let vocab = ByteVocab::new();
    let mut bytes = Vec::new();
    for &token in &planned.prompt.tokens {
        match vocab.control_tokens().iter().find(|(control, _)| *control == token) {
            Some((_, spelling)) => bytes.extend(spelling.bytes()),
            None => vocab.piece(token, &mut bytes),
        }
    }
    String::from_utf8(bytes).unwrap()
}

/// The plan as golden.
fn show(planned: &Planned) -> String {
    let mut shown = String::new();
    for section in &planned.sections {
        shown += &format!("{:?} {}: {} bytes\n", section.class, section.name, section.n_bytes);
    }
    for moved in &planned.moved {
        let kind = if moved.is_clock { "clock" } else { "state" };
        let to = moved.to_message.map_or("nowhere".to_owned(), |to| format!("message {to}"));
        shown += &format!("moved {kind}, message {} to {to}:\n{}\n", moved.from_message, indented(&moved.text));
    }
    let text = text(planned);
    match text.rfind("[As of ").map(|at| text[at..].split("<|im_end|>").next().unwrap()) {
        Some(last) => shown += &format!("last turn with its live block:\n{}", indented(last)),
        None => shown += "no live block",
    }
    shown
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}").trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

#[test]
fn home_assistants_area_line_stands_before_the_question_once_another_satellite_has_asked() {
    let mut home = Home::new(LayoutMode::Safe);
    home.ask_after(0, &recorded("u01"));
    home.ask_after(60, &recorded("u07"));
    insta::assert_snapshot!(show(&home.ask_after(60, &recorded("u11"))), @r"
    Session client system: 4001 bytes
    Fixed tools: 13927 bytes
    Turn question: 10 bytes
    Live live: 155 bytes
    moved state, message 0 to message 1:
      You are in area Bedroom (floor Upstairs) and all generic commands like 'turn on the lights' should target this area.
    last turn with its live block:
      [As of Monday 2026-11-30 18:29 UTC:]
      You are in area Bedroom (floor Upstairs) and all generic commands like 'turn on the lights' should target this area.

      Good night
    ");
}

#[test]
fn home_assistants_timers_line_is_told_to_clients_without_timers() {
    let mut home = Home::new(LayoutMode::Safe);
    home.ask_after(0, &recorded("u01"));
    home.ask_after(60, &recorded("u07"));
    insta::assert_snapshot!(show(&home.ask_after(HOUR + 1, &recorded("u14"))), @r"
    Session client system: 4001 bytes
    Fixed tools: 11626 bytes
    Turn question: 26 bytes
    Live live: 218 bytes
    moved state, message 0 to message 1:
      When a user asks to turn on all devices of a specific type, ask the user to specify an area, unless there is only one device of that type.
      This device is not able to start timers.
    last turn with its live block:
      [As of Monday 2026-11-30 19:28 UTC:]
      When a user asks to turn on all devices of a specific type, ask the user to specify an area, unless there is only one device of that type.
      This device is not able to start timers.

      Turn on the unknown gadget
    ");
}

#[test]
fn home_assistants_exposed_device_moves_when_it_has_gone_and_come_back() {
    let mut home = Home::new(LayoutMode::Safe);
    home.ask_after(0, &recorded("u14"));
    home.ask_after(60, &recorded("u19"));
    home.ask_after(60, &recorded("u17"));
    insta::assert_snapshot!(show(&home.ask_after(HOUR + 1, &recorded("u18"))), @r"
    Session client system: 4137 bytes
    Fixed tools: 11626 bytes
    Turn question: 37 bytes
    Live live: 159 bytes
    moved state, message 0 to message 1:
      - names: Decorative Lights
        domain: switch
    last turn with its live block:
      [As of Monday 2026-11-30 19:29 UTC:]
      Static Context: An overview of the areas and the devices in this smart home:
      - names: Decorative Lights
        domain: switch

      Mach bitte das Licht im Wohnzimmer an
    ");
}

#[test]
fn home_assistants_form_without_tools_has_its_time_before_the_task() {
    let mut home = Home::new(LayoutMode::Safe);
    let mut body = recorded("ai_task");
    let time = body["messages"][0]["content"].as_str().unwrap().to_owned();
    assert!(time.contains("18:27:50") && body["tools"].as_array().unwrap().is_empty(), "{time}");
    insta::assert_snapshot!(show(&home.ask_after(0, &body)), @r"
    Session client system: 64 bytes
    Turn question: 49 bytes
    Live live: 92 bytes
    moved clock, message 0 to message 1:
      Current time is 18:27:50. Today's date is 2026-11-30.
    last turn with its live block:
      [As of Monday 2026-11-30 18:27 UTC:]
      Current time is 18:27:50. Today's date is 2026-11-30.

      Summarise the state of the house in one sentence.
    ");
    body["messages"][0]["content"] = time.replace("18:27:50", "18:40:02").into();
    insta::assert_snapshot!(show(&home.ask_after(732, &body)), @r"
    Session client system: 64 bytes
    Turn question: 49 bytes
    Live live: 92 bytes
    moved clock, message 0 to message 1:
      Current time is 18:40:02. Today's date is 2026-11-30.
    last turn with its live block:
      [As of Monday 2026-11-30 18:40 UTC:]
      Current time is 18:40:02. Today's date is 2026-11-30.

      Summarise the state of the house in one sentence.
    ");
}

#[test]
fn open_webuis_clock_stands_before_the_question() {
    // Its variables {{USER_NAME}}, {{CURRENT_DATETIME}}, {{CURRENT_WEEKDAY}} in a model's system prompt.
    let system = "You are a helpful assistant talking to Ada.\nCurrent date and time: 2026-11-30 07:27:50 PM\n\
                  Today is Monday.\n\nAnswer in Markdown. Keep it short.";
    let mut home = Home::new(LayoutMode::Safe);
    home.zone = BERLIN;
    insta::assert_snapshot!(show(&home.ask_after(0, &asking(system, "What is for dinner?"))), @r"
    Session client system: 79 bytes
    Turn question: 19 bytes
    Live live: 101 bytes
    moved clock, message 0 to message 1:
      Current date and time: 2026-11-30 07:27:50 PM
      Today is Monday.
    last turn with its live block:
      [As of Monday 2026-11-30 19:27 CET:]
      Current date and time: 2026-11-30 07:27:50 PM
      Today is Monday.

      What is for dinner?
    ");
}

#[test]
fn a_coding_agents_billing_header_stands_before_the_question() {
    let parts = json!([
        { "type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.37.fbe; cc_entrypoint=cli; cch=aaaaa;" },
        { "type": "text", "text": "You are a coding agent.\n\nUse the tools to read before you write." },
    ]);
    let mut home = Home::new(LayoutMode::Safe);
    insta::assert_snapshot!(show(&home.ask_after(0, &asking(parts, "Fix the test."))), @r"
    Session client system: 64 bytes
    Turn question: 13 bytes
    Live live: 119 bytes
    moved clock, message 0 to message 1:
      x-anthropic-billing-header: cc_version=2.1.37.fbe; cc_entrypoint=cli; cch=aaaaa;
    last turn with its live block:
      [As of Monday 2026-11-30 18:27 UTC:]
      x-anthropic-billing-header: cc_version=2.1.37.fbe; cc_entrypoint=cli; cch=aaaaa;

      Fix the test.
    ");
}

#[test]
fn white_space_is_the_clients_and_no_change_of_what_it_says() {
    let mut home = Home::new(LayoutMode::Optimise);
    let system = "You are the voice of this house.\n\n- lamp: on\n- heater: warm\n\nBe brief.";
    home.ask_after(0, &asking(system, "Hello"));
    home.ask_after(60, &asking(system.replace("\n\n", "\n \n\n"), "Hello"));
    home.ask_after(60, &asking(system.replace("- ", "-  ").replace("on\n", "on  \n"), "Hello"));
    insta::assert_snapshot!(show(&home.ask_after(60, &asking(system, "Hello again"))), @r"
    Session client system: 70 bytes
    Turn question: 11 bytes
    no live block
    ");
}

#[test]
fn a_polish_household_keeps_its_words() {
    let system = |time: &str, lamp: &str, door: &str| {
        format!(
            "Jesteś asystentem domowym rodziny Nowaków. Jest godzina {time}. Dzisiaj jest poniedziałek, 30 listopada 2026.\n\n\
             Stan urządzeń:\n- lampa w kuchni: {lamp}\n- drzwi wejściowe: {door}\n- ogrzewanie: 21 °C\n\n\
             Odpowiadaj krótko i po polsku. Używaj tylko narzędzi, które masz, i nigdy nie zgaduj stanu urządzeń.\n\
             W domu mieszkają Anna, Piotr i ich córka Zosia, która ma osiem lat i nie otwiera drzwi obcym."
        )
    };
    let mut home = Home::new(LayoutMode::Safe);
    home.zone = BERLIN;
    home.ask_after(0, &asking(system("19:27", "włączona", "zamknięte"), "Cześć"));
    home.ask_after(60, &asking(system("19:28", "wyłączona", "otwarte"), "Dzień dobry"));
    insta::assert_snapshot!(show(&home.ask_after(60, &asking(system("19:29", "włączona", "otwarte"), "Czy drzwi są zamknięte?"))), @r"
    Session client system: 249 bytes
    Turn question: 25 bytes
    Live live: 200 bytes
    moved clock, message 0 to message 1:
      Jest godzina 19:29. Dzisiaj jest poniedziałek, 30 listopada 2026.
    moved state, message 0 to message 1:
      Stan urządzeń:
      - lampa w kuchni: włączona
      - drzwi wejściowe: otwarte
      - ogrzewanie: 21 °C
    last turn with its live block:
      [As of Monday 2026-11-30 19:29 CET:]
      Jest godzina 19:29. Dzisiaj jest poniedziałek, 30 listopada 2026.
      Stan urządzeń:
      - lampa w kuchni: włączona
      - drzwi wejściowe: otwarte
      - ogrzewanie: 21 °C

      Czy drzwi są zamknięte?
    ");
}

#[test]
fn a_german_household_keeps_its_words() {
    let system = |time: &str, lamp: &str, door: &str| {
        format!(
            "Du bist die Stimme im Haus der Familie Möller.\nHeute ist Montag, der 30. November 2026, es ist {time} Uhr.\n\n\
             | Gerät | Zustand |\n|---|---|\n| Küchenlicht | {lamp} |\n| Haustür | {door} |\n| Heizung | 21 °C |\n\n\
             Der Kessel wurde am 12.05.2026 gewartet.\nAntworte kurz."
        )
    };
    let mut home = Home::new(LayoutMode::Safe);
    home.zone = BERLIN;
    home.ask_after(0, &asking(system("19:27", "an", "zu"), "Hallo"));
    home.ask_after(60, &asking(system("19:28", "aus", "offen"), "Guten Abend"));
    insta::assert_snapshot!(show(&home.ask_after(60, &asking(system("19:29", "an", "offen"), "Ist die Tür zu?"))), @r"
    Session client system: 104 bytes
    Turn question: 16 bytes
    Live live: 192 bytes
    moved clock, message 0 to message 1:
      Heute ist Montag, der 30. November 2026, es ist 19:29 Uhr.
    moved state, message 0 to message 1:
      | Gerät | Zustand |
      |---|---|
      | Küchenlicht | an |
      | Haustür | offen |
      | Heizung | 21 °C |
    last turn with its live block:
      [As of Monday 2026-11-30 19:29 CET:]
      Heute ist Montag, der 30. November 2026, es ist 19:29 Uhr.
      | Gerät | Zustand |
      |---|---|
      | Küchenlicht | an |
      | Haustür | offen |
      | Heizung | 21 °C |

      Ist die Tür zu?
    ");
}

#[test]
fn a_clock_inside_a_line_costs_itself_and_what_is_asked() {
    // Acceptance case 4: what stands behind the clock on the same line is reused.
    let rules = "You are the voice of this house. ".repeat(40);
    let ask = |home: &mut Home, seconds: i64, time: &str| {
        let system = format!("Current time is {time}. Today's date is 2026-11-30. {rules}");
        home.ask_after(seconds, &asking(system, "How late is it?"))
    };
    for mode in [LayoutMode::Safe, LayoutMode::Optimise] {
        let mut home = Home::new(mode);
        let first = ask(&mut home, 0, "18:27:50");
        let second = ask(&mut home, 14, "18:28:04");
        let n_cached = first.prompt.tokens.iter().zip(&second.prompt.tokens).take_while(|(a, b)| a == b).count();
        assert!(n_cached >= rules.trim().len(), "{n_cached}");
        let text = text(&second);
        assert!(text.rfind("18:28:04") > text.rfind("18:27:50") && text.ends_with("assistant\n"), "{text}");
        assert_eq!(text.matches("Today's date").count(), 1);
    }
}
