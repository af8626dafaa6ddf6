//! What a house says of itself, through the planner: where it stands, when it is said again, beside what clients say.

use std::sync::Mutex;

use proptest::prelude::*;

use super::*;
use crate::prompt::Cause;
use crate::request::LayoutMode;

/// 2026-11-30 20:06:10 UTC, a Monday.
const START: i64 = 1_796_069_170;

/// A house whose values tests change, and its planner.
struct Talking {
    planner: Planner,
    now: i64,
    says: Arc<Mutex<HouseLive>>,
}

impl Talking {
    fn new(mode: LayoutMode, has_clock: bool) -> Talking {
        let says = Arc::new(Mutex::new(HouseLive { has_clock, values: Vec::new() }));
        let read = says.clone();
        let kids = Profile { name: "kids".into(), ..super::house() };
        let planner = planner(Bytes::new(), Template::new(Style::ToolsAfter), vec![super::house(), kids])
            .with_layout(Layout { mode, n_context_tokens: 1 << 20, file: None })
            .with_house_live(Box::new(move |profile| match profile {
                "house" => read.lock().unwrap().clone(),
                _ => HouseLive::default(),
            }));
        Talking { planner, now: START, says }
    }

    fn say(&self, name: &str, text: &str, last_true: Option<i64>) {
        let values = &mut self.says.lock().unwrap().values;
        let value = HouseValue { name: name.into(), text: text.into(), last_true };
        match values.iter_mut().find(|value| value.name == name) {
            Some(old) => *old = value,
            None => values.push(value),
        }
    }

    fn ask(&mut self, messages: &[Message]) -> Planned {
        self.ask_of("house", messages)
    }

    fn ask_of(&mut self, model: &str, messages: &[Message]) -> Planned {
        self.planner.plan(&request(model, messages, &[]), &Moment::utc(self.now)).unwrap()
    }

    fn answer(&mut self, planned: &Planned, text: &str) -> Message {
        self.planner.remember(&Spoken {
            owner: request("house", &[], &[]).client.owner(),
            opening: planned.opening.clone(),
            record: planned.record,
            text: text.into(),
            calls: Vec::new(),
            tokens: Bytes::new().tokenize(text, Special::Text),
        });
        assistant(text)
    }
}

/// From the last marker of the live block on, the sections not shown.
fn turns(planned: &Planned) -> String {
    let shown = show(planned).replace('✂', "");
    let (_, turns) = shown.split_once("Noted.⟦<|im_end|>⟧\n").expect("documents stand as a first exchange");
    turns.split("---").next().unwrap().to_owned()
}

#[test]
fn values_stand_in_front_of_the_question_and_only_news_is_said_again() {
    let mut house = Talking::new(LayoutMode::Off, true);
    house.say("weather", "rain, 4 °C", None);
    house.say("states", "door: open\nlight: off", None);
    house.say("unread", "", None);
    let first = house.ask(&[user("Is it warm?")]);
    insta::assert_snapshot!(turns(&first), @r"
    ⟦<|im_start|>⟧user
    [As of Monday 2026-11-30 20:06 UTC:]
    weather: rain, 4 °C
    states:
    door: open
    light: off

    Is it warm?⟦<|im_end|>⟧
    ⟦<|im_start|>⟧assistant
    ");
    let live = first.sections.last().unwrap();
    assert_eq!((live.name.as_str(), live.class), ("live", Volatility::Live));
    assert_eq!((first.live_cause, house.ask(&[user("Is it warm?")]).prompt), (Cause::New, first.prompt.clone()));

    let answer = house.answer(&first, "No.");
    house.now += 120;
    house.say("weather", "sun, 9 °C", None);
    house.say("states", "", None);
    let second = house.ask(&[user("Is it warm?"), answer.clone(), user("And now?")]);
    assert!(second.prompt.tokens.starts_with(&first.prompt.tokens), "earlier turns keep their blocks");
    let shown = turns(&second);
    insta::assert_snapshot!(shown.split_once("No.").unwrap().1, @r"
    ⟦<|im_end|>⟧
    ⟦<|im_start|>⟧user
    [As of Monday 2026-11-30 20:08 UTC:]
    weather: sun, 9 °C
    no longer: states:

    And now?⟦<|im_end|>⟧
    ⟦<|im_start|>⟧assistant
    ");
}

#[test]
fn without_a_clock_nothing_is_said_until_something_changes() {
    let mut house = Talking::new(LayoutMode::Off, false);
    house.say("weather", "rain", None);
    let first = house.ask(&[user("Hi")]);
    let answer = house.answer(&first, "Hello.");
    house.now += 3000;
    let second = house.ask(&[user("Hi"), answer, user("Again")]);
    assert!(second.prompt.tokens.starts_with(&first.prompt.tokens));
    assert_eq!(turns(&second).matches("[As of").count(), 1);
}

#[test]
fn a_value_whose_source_fails_says_since_when() {
    let mut house = Talking::new(LayoutMode::Off, false);
    house.say("weather", "rain", Some(START - 3 * 3600));
    assert!(turns(&house.ask(&[user("Hi")])).contains("\nweather: rain (since 17:06)\n"));
    house.say("weather", "rain\nwind", Some(START - 24 * 3600));
    assert!(turns(&house.ask(&[user("Hi")])).contains("\nweather (since 2026-11-29 20:06):\nrain\nwind\n"));
}

#[test]
fn a_tool_loop_keeps_its_block_and_hears_news_behind_it() {
    let mut house = Talking::new(LayoutMode::Off, true);
    house.say("door", "open", None);
    let first = house.ask(&[user("Lock up")]);
    let calling = Message { tool_calls: vec![super::call("light", "{}")], ..assistant("") };
    house.now += 5;
    let messages = [user("Lock up"), calling, tool("done")];
    let second = house.ask(&messages);
    assert!(second.prompt.tokens.starts_with(&first.prompt.tokens[..first.prompt.tokens.len() - 8]));
    assert_eq!(turns(&second).matches("[As of").count(), 1, "the clock may be a minute old in a loop");
    house.say("door", "shut", None);
    let third = house.ask(&messages);
    assert!(turns(&third).contains("\n[As of Monday 2026-11-30 20:06 UTC:]\ndoor: shut\n\ndone"), "{}", turns(&third));
}

#[test]
fn clients_slots_and_the_houses_share_one_block() {
    let mut house = Talking::new(LayoutMode::Safe, false);
    house.say("weather", "rain", None);
    let sent = |time: &str| system(&format!("Current time: {time}\nYou speak for the kitchen.\n\nAnswer briefly."));
    let first = house.ask(&[sent("20:06:10"), user("Hi")]);
    let shown = turns(&first);
    assert!(
        shown.contains("\n[As of Monday 2026-11-30 20:06 UTC:]\nCurrent time: 20:06:10\nweather: rain\n\nHi"),
        "{shown}"
    );
    let answer = house.answer(&first, "Hello.");
    house.now += 60;
    house.say("weather", "sun", None);
    let second = house.ask(&[sent("20:07:10"), user("Hi"), answer, user("And now?")]);
    assert!(second.prompt.tokens.starts_with(&first.prompt.tokens));
    assert!(turns(&second).contains("Current time: 20:07:10\nweather: sun\n\nAnd now?"));
}

#[test]
fn in_off_and_observe_the_clients_own_text_stays_where_it_is() {
    for mode in [LayoutMode::Off, LayoutMode::Observe] {
        let mut house = Talking::new(mode, false);
        house.say("weather", "rain", None);
        let own = "Current time: 20:06:10\nYou speak for the kitchen.\n";
        let planned = house.ask(&[system(own), user("Hi")]);
        let shown = turns(&planned);
        assert!(shown.starts_with("⟦<|im_start|>⟧user\nCurrent time: 20:06:10\nYou speak for the kitchen."), "{shown}");
        assert!(shown.contains("weather: rain\n\nHi"), "{shown}");
        assert_eq!(planned.moved.len(), usize::from(mode == LayoutMode::Observe));
        assert!(planned.moved.iter().all(|moved| moved.to_message.is_none()));
    }
}

#[test]
fn another_profile_and_the_model_itself_say_nothing_of_it() {
    let mut house = Talking::new(LayoutMode::Off, true);
    house.say("weather", "rain", None);
    for model in ["kids", "model"] {
        let planned = house.ask_of(model, &[user("Hi")]);
        assert!(planned.sections.iter().all(|section| section.class != Volatility::Live), "{model}");
    }
}

#[test]
fn a_value_gives_way_where_the_context_is_too_small_and_cannot_make_a_prompt_invalid() {
    let mut house = Talking::new(LayoutMode::Off, true);
    let bare = Talking::new(LayoutMode::Off, false).ask(&[user("Hi")]).prompt;
    house.say("weather", "rain <|im_end|> \u{100000}", None);
    assert!(turns(&house.ask(&[user("Hi")])).contains("weather: rain <|im_end|> \u{fffd}"));
    house.planner = house.planner.with_layout(Layout {
        mode: LayoutMode::Off,
        n_context_tokens: bare.tokens.len() + 5,
        file: None,
    });
    assert_eq!(house.ask(&[user("Hi")]).prompt, bare);
}

#[test]
fn an_edited_turn_and_a_regenerated_one_see_the_present() {
    let mut house = Talking::new(LayoutMode::Off, true);
    house.say("door", "open", None);
    let first = house.ask(&[user("One")]);
    let answer = house.answer(&first, "A.");
    house.now += 600;
    house.say("door", "shut", None);
    let again = house.ask(&[user("One")]);
    assert!(turns(&again).contains("20:16 UTC:]\ndoor: shut\n\nOne"), "{}", turns(&again));
    let edited = house.ask(&[user("One"), answer, user("Two, edited")]);
    assert!(edited.prompt.tokens.starts_with(&first.prompt.tokens), "its past is what was sent");
    assert!(turns(&edited).contains("door: shut\n\nTwo, edited"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The same as for clients' text, for what the house says, with the client's text left alone and with slots of its own.
    #[test]
    fn the_last_value_that_a_prompt_shows_is_the_true_one(
        moderate: bool,
        turns_of_day in proptest::collection::vec((0usize..3, 0usize..3, any::<bool>()), 1..8),
    ) {
        let texts = ["", "one", "two\nthree"];
        let mut house = Talking::new(if moderate { LayoutMode::Safe } else { LayoutMode::Off }, false);
        let mut conversation: Vec<Message> = Vec::new();
        for (n, (door, light, is_new)) in turns_of_day.into_iter().enumerate() {
            if is_new {
                conversation.clear();
            }
            house.now += 700;
            house.say("door", texts[door], None);
            house.say("light", texts[light], None);
            conversation.push(user(&format!("Question {n}")));
            let of_day = house.now.rem_euclid(24 * 3600);
            let time = format!("Current time: {:02}:{:02}:10", of_day / 3600, of_day / 60 % 60);
            let mut sent = vec![system(&format!("{time}\nYou speak for the kitchen."))];
            sent.extend(conversation.iter().cloned());
            let planned = house.ask(&sent);
            let shown = turns(&planned);
            for (name, text) in [("door", texts[door]), ("light", texts[light])] {
                let is_of = |line: &&str| line.trim_start_matches("no longer: ").starts_with(&format!("{name}:"));
                let last = shown.lines().rfind(is_of);
                match (text, last) {
                    ("", last) => prop_assert!(last.is_none_or(|line| line.starts_with("no longer: ")), "{}", shown),
                    ("one", last) => prop_assert_eq!(last, Some(&*format!("{name}: one")), "{}", &shown),
                    (_, last) => prop_assert_eq!(last, Some(&*format!("{name}:")), "{}", &shown),
                }
            }
            let answer = house.answer(&planned, &format!("Answer {n}"));
            conversation.push(answer);
        }
    }
}
