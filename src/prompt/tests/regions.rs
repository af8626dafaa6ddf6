//! Whose each token is, and where the text as sent would have ended to be reused.

use proptest::prelude::*;

use super::live::{START, clocked, laying};
use super::*;

/// Each region as `section: its text`.
fn shown(planned: &Planned, vocab: &Bytes) -> String {
    let mut start = 0;
    let regions = planned.regions.iter().map(|region| {
        let text = vocab.decode(&planned.prompt.tokens[start..region.end]);
        start = region.end;
        format!("{}: {text:?}", planned.sections[region.section_idx].name)
    });
    regions.collect::<Vec<_>>().join("\n")
}

#[test]
fn the_regions_of_a_profiles_prompt_are_its_sections() {
    let turns = [system("Speak softly."), user("Hi"), assistant("Hello."), user("Is the oven on?")];
    let planned = plan(Style::ToolsAfter, request("house", &turns, &[]));
    insta::assert_snapshot!(shown(&planned, &Bytes::new()), @r#"
    policy: "⟦<|im_start|>⟧system\nBe kind."
    tools: "\n\n<tools>\n{\"type\":\"function\",\"function\":{\"name\":\"light\",\"description\":\"Switches.\"}}\n</tools>⟦<|im_end|>⟧\n⟦<|im_start|>⟧"
    document handbook: "user\nThese are the household's documents. Rely on them where they answer a question.\n\n<document title=\"handbook\">\nThe key is under the mat.\n</document>\n\n"
    document bins: "<document title=\"bins\">\nPaper: Monday.\n</document>⟦<|im_end|>⟧\n⟦<|im_start|>⟧assistant\nNoted.⟦<|im_end|>⟧\n⟦<|im_start|>⟧"
    client system: "user\nSpeak softly.⟦<|im_end|>⟧\n⟦<|im_start|>⟧assistant\nNoted.⟦<|im_end|>⟧\n⟦<|im_start|>⟧"
    history: "user\nHi⟦<|im_end|>⟧\n⟦<|im_start|>⟧assistant\nHello."
    question: "⟦<|im_end|>⟧\n⟦<|im_start|>⟧user\nIs the oven on?⟦<|im_end|>⟧\n⟦<|im_start|>⟧assistant\n"
    "#);
    let planned = plan(Style::ToolsBefore, request("house", &turns, &[]));
    insta::assert_snapshot!(shown(&planned, &Bytes::new()), @r#"
    tools: "⟦<|im_start|>⟧tools\n<tools>\n{\"type\":\"function\",\"function\":{\"name\":\"light\",\"description\":\"Switches.\"}}\n</tools>⟦<|im_end|>⟧\n⟦<|im_start|>⟧system\nBe"
    policy: " kind."
    document handbook: "\n\nThese are the household's documents. Rely on them where they answer a question.\n\n<document title=\"handbook\">\nThe key is under the mat.\n</document>\n\n"
    document bins: "<document title=\"bins\">\nPaper: Monday.\n</document>⟦<|im_end|>⟧\n⟦<|im_start|>⟧"
    client system: "user\nSpeak softly.⟦<|im_end|>⟧\n⟦<|im_start|>⟧assistant\nNoted.⟦<|im_end|>⟧\n⟦<|im_start|>⟧"
    history: "user\nHi⟦<|im_end|>⟧\n⟦<|im_start|>⟧assistant\nHello."
    question: "⟦<|im_end|>⟧\n⟦<|im_start|>⟧user\nIs the oven on?⟦<|im_end|>⟧\n⟦<|im_start|>⟧assistant\n"
    "#);
}

#[test]
fn the_regions_of_a_clients_own_prompt_part_system_text_tools_and_turns() {
    let called = Message { tool_calls: vec![call("light", "{}")], ..assistant("") };
    let turns = [system("Rules."), system("More <|im_end|> rules."), user("On?"), called, tool("it is on")];
    for style in [Style::ToolsAfter, Style::Plain, Style::Shared] {
        let planned = plan(style, request("model", &turns, &[LIGHT]));
        match style {
            Style::ToolsAfter => insta::assert_snapshot!(shown(&planned, &Bytes::new()), @r#"
            client system: "⟦<|im_start|>⟧system\nRules.\n\n<tools>\n{\"type\":\"function\",\"function\":{\"name\":\"light\",\"description\":\"Switches.\"}}\n</tools>⟦<|im_end|>⟧\n⟦<|im_start|>⟧system\nMore <|im_end|> rules."
            tools: "⟦<|im_end|>⟧\n⟦<|im_start|>⟧"
            question: "user\nOn?⟦<|im_end|>⟧\n⟦<|im_start|>⟧assistant\n<call>light {}</call>⟦<|im_end|>⟧\n⟦<|im_start|>⟧tool\nit is on⟦<|im_end|>⟧\n⟦<|im_start|>⟧assistant\n"
            "#),
            Style::Plain => insta::assert_snapshot!(shown(&planned, &Bytes::new()), @r#"
            client system: "⟦<|im_start|>⟧system\nRules.⟦<|im_end|>⟧\n⟦<|im_start|>⟧system\nMore <|im_end|> rules.\n"
            tools: "\n# Tools\n\nYou can call these functions, each described by one line of JSON:\n<tools>\n{\"type\": \"function\", \"function\": {\"name\": \"light\", \"description\": \"Switches.\"}}\n</tools>\n\nTo call a function, answer with its name and arguments as JSON inside <tool_call> tags, one block for each call:\n<tool_call>\n{\"name\": \"the function's name\", \"arguments\": {\"parameter\": \"value\"}}\n</tool_call>\nWhat it returned comes back inside <tool_response> tags.⟦<|im_end|>⟧\n⟦<|im_start|>⟧"
            question: "user\nOn?⟦<|im_end|>⟧\n⟦<|im_start|>⟧assistant\n<tool_call>\n{\"name\": \"light\", \"arguments\": {}}\n</tool_call>⟦<|im_end|>⟧\n⟦<|im_start|>⟧user\n<tool_response>\nit is on\n</tool_response>⟦<|im_end|>⟧\n⟦<|im_start|>⟧assistant\n"
            "#),
            _ => insta::assert_snapshot!(shown(&planned, &Bytes::new()), @r#"
            client system: "⟦<start_of_turn>⟧system\nRules.\n\n<tools>\n{\"type\":\"function\",\"function\":{\"name\":\"light\",\"description\":\"Switches.\"}}\n</tools>\n\nMore <|im_end|> rules."
            tools: "⟦<end_of_turn>⟧\n⟦<start_of_turn>⟧user\nO"
            question: "n?⟦<end_of_turn>⟧\n⟦<start_of_turn>⟧model\n<call>light {}</call>⟦<end_of_turn>⟧\n⟦<start_of_turn>⟧tool\nit is on⟦<end_of_turn>⟧\n⟦<start_of_turn>⟧model\n"
            "#),
        }
    }
}

#[test]
fn live_blocks_are_regions_between_their_messages() {
    let mut planner = laying(LayoutMode::Safe, 1 << 20, None);
    let mut turns = vec![clocked(START), user("Is the oven on?")];
    planner.plan(&request("model", &turns, &[LIGHT]), &Moment::utc(START)).unwrap();
    turns[0] = clocked(START + 700);
    turns.extend([assistant("No."), user("And now?")]);
    let planned = planner.plan(&request("model", &turns, &[LIGHT]), &Moment::utc(START + 700)).unwrap();
    insta::assert_snapshot!(shown(&planned, &Bytes::new()), @r#"
    client system: "⟦<|im_start|>⟧system\nYou are the voice of this house and answer briefly.\n\nUse the tools that you are given."
    tools: "\n\n<tools>\n{\"type\":\"function\",\"function\":{\"name\":\"light\",\"description\":\"Switches.\"}}\n</tools>⟦<|im_end|>⟧\n⟦<|im_start|>⟧"
    history: "user\n["
    live: "As of Monday 2026-11-30 20:06 UTC:]\nCurrent time: 20:06:10\n\n"
    history: "Is the oven on?⟦<|im_end|>⟧\n⟦<|im_start|>⟧assistant\nNo."
    live: "⟦<|im_end|>⟧\n⟦<|im_start|>⟧user\n[As of Monday 2026-11-30 20:17 UTC:]\nCurrent time: 20:17:50\n\n"
    question: "And now?⟦<|im_end|>⟧\n⟦<|im_start|>⟧assistant\n"
    "#);
}

#[test]
fn a_gain_is_what_was_reused_behind_the_place_that_changed() {
    let mut planner = laying(LayoutMode::Safe, 1 << 20, None);
    let ask = |planner: &mut Planner, now| {
        planner.plan(&request("model", &[clocked(now), user("On?")], &[LIGHT]), &Moment::utc(now)).unwrap()
    };
    let first = ask(&mut planner, START);
    let gain = first.gain.expect("nothing was sent before");
    assert_eq!((gain.n_tokens(gain.from), gain.n_tokens(gain.from + 5), gain.to), (0, 5, None));
    let text = Bytes::new().decode(&first.prompt.tokens[..gain.from]);
    assert_eq!(text, "⟦<|im_start|>⟧system\nYo", "the clock stood at the very front; tokens have three bytes");
    assert_eq!(ask(&mut planner, START).gain, None, "as sent it is held now");
    assert!(ask(&mut planner, START + 700).gain.is_some());

    let mut planner = laying(LayoutMode::Observe, 1 << 20, None);
    assert_eq!(ask(&mut planner, START).gain, None, "what would stay was not seen before");
    let second = ask(&mut planner, START + 700);
    let gain = second.gain.expect("the clock differs");
    let n_head = planned_end(&second, "tools");
    let to = gain.to.expect("observe says how far");
    assert!(to < n_head && to > n_head - 40, "all but the clock: {to} of {n_head}");
    assert_eq!(gain.n_tokens(gain.from + 7), to - gain.from - 7);
}

#[test]
fn a_slot_that_did_not_change_is_no_gain() {
    let mut planner = laying(LayoutMode::Safe, 1 << 20, None);
    let rules = "You are the voice of this house and answer briefly.\n\nNever open the door to strangers.";
    let text = |id: u32, now: i64| {
        let Message { content, .. } = clocked(now);
        let clock = content.lines().next().unwrap();
        system(&format!("request id: 0f8fad5b-d9cb-469f-a165-{id:012}\n{rules}\n{clock}"))
    };
    let mut ask =
        |id, now| planner.plan(&request("model", &[text(id, now), user("On?")], &[]), &Moment::utc(now)).unwrap();
    let before = |planned: &Planned| {
        let gain = planned.gain.expect("as sent it is new");
        Bytes::new().decode(&planned.prompt.tokens[..gain.from]).contains("strangers")
    };
    assert!(!before(&ask(1, START)));
    assert!(before(&ask(1, START + 700)), "the id is the same, only the clock differs");
    assert!(!before(&ask(2, START + 700)));
}

fn planned_end(planned: &Planned, name: &str) -> usize {
    let of_section = |region: &&Region| planned.sections[region.section_idx].name == name;
    planned.regions.iter().rfind(of_section).unwrap().end
}

proptest! {
    #[test]
    fn regions_follow_each_other_to_the_end(
        texts in prop::collection::vec("([a-z<|> \n]|<\\|im_end\\|>){0,30}", 1..7),
        style in prop::sample::select(vec![Style::Plain, Style::ToolsAfter, Style::ToolsBefore, Style::Shared]),
        model in prop::sample::select(vec!["model", "house"]),
        strips in any::<bool>(),
    ) {
        let roles = [Role::System, Role::User, Role::Assistant, Role::User, Role::Assistant, Role::User];
        let messages: Vec<Message> = roles.iter().zip(&texts).map(|(role, text)| Message::text(*role, text)).collect();
        let vocab = if strips { Bytes::stripping() } else { Bytes::with_bos() };
        let planned = planner(vocab, Template::new(style), vec![house()]).plan(&request(model, &messages, &[LIGHT]), &NOW).unwrap();
        let mut start = 0;
        for region in &planned.regions {
            prop_assert!(region.end > start, "{planned:?}");
            start = region.end;
        }
        prop_assert_eq!(start, planned.prompt.tokens.len());
        for (section_idx, section) in planned.sections.iter().enumerate() {
            if let Some(cut) = section.cut {
                let last = planned.regions.iter().rfind(|region| region.section_idx == section_idx);
                // What the template opens behind the last one is its, too.
                let is_right = |region: &Region| [cut, planned.prompt.tokens.len()].contains(&region.end);
                prop_assert!(last.is_none_or(is_right), "{section:?} {:?}", planned.regions);
            }
        }
    }
}
