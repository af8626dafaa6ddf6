//! What holds for every request.

use proptest::prelude::*;

use super::*;
use crate::request::LayoutMode;

proptest! {
    /// The invariant pins rest on.
    #[test]
    fn a_pin_is_a_prefix_of_each_request_with_the_profiles_tools(
        style in style(),
        profile in any_profile(),
        client_system in prop::option::of(text()),
        turns in prop::collection::vec((text(), text()), 0..3),
        question in text(),
        repeats_tools in any::<bool>(),
    ) {
        let mut planner = planner(Bytes::with_bos(), Template::new(style), vec![profile.clone()]);
        let mut messages: Vec<Message> = client_system.iter().map(|text| system(text)).collect();
        messages.extend(turns.iter().flat_map(|(asked, answered)| [user(asked), assistant(answered)]));
        messages.push(user(&question));
        let tools: Vec<&str> = if repeats_tools { profile.tools.iter().map(String::as_str).collect() } else { vec![] };
        let planned = planner.plan(&request("house", &messages, &tools), &NOW).unwrap();
        let pins = planner.pins().unwrap();
        let has_head = !(profile.system.trim().is_empty() && profile.tools.is_empty() && profile.documents.is_empty());
        prop_assert_eq!(pins.len(), usize::from(has_head && (style != Style::Shared || !profile.documents.is_empty())));
        for pin in &pins {
            prop_assert!(planned.prompt.tokens.starts_with(&pin.prompt.tokens));
            prop_assert!(planned.prompt.cuts.contains(&pin.prompt.tokens.len()));
            prop_assert!(pin.prompt.cuts.iter().all(|cut| planned.prompt.cuts.contains(cut)));
        }
        check_cuts(&planned.prompt);

        // What is remembered changes time, never tokens.
        let warm = planner.plan(&request("house", &messages, &tools), &NOW).unwrap();
        prop_assert_eq!(&warm.prompt, &planned.prompt);
        prop_assert_eq!(&warm.sections, &planned.sections);
    }

    #[test]
    fn cuts_of_a_clients_own_prompt_are_the_same_for_each_question(
        style in style(), system_text in text(), first in text(), second in text(),
    ) {
        let mut planner = planner(Bytes::new(), Template::new(style), vec![]);
        let mut cut = |question: &str| {
            let messages = [system(&system_text), user(question)];
            let prompt = planner.plan(&request("model", &messages, &[LIGHT]), &NOW).unwrap().prompt;
            check_cuts(&prompt);
            prompt.cuts.last().map(|&cut| prompt.tokens[..cut].to_vec())
        };
        prop_assert_eq!(cut(&first), cut(&second));
    }
}

proptest! {
    /// One question each, so that what moved stands in front of it and nothing else is written.
    #[test]
    fn each_line_of_a_clients_prompt_is_kept_once_and_the_same_request_gets_the_same_plan(
        style in style(), prompts in prop::collection::vec((lines(), text()), 1..6), mode in mode(),
    ) {
        let layout = Layout { mode, n_context_tokens: 1 << 20, file: None };
        let mut laying = planner(Bytes::new(), Template::new(style), vec![]).with_layout(layout);
        let mut bare = planner(Bytes::new(), Template::new(style), vec![]);
        for (n, (lines, question)) in prompts.iter().enumerate() {
            let now = Moment::utc(68_000 + 40 * n as i64);
            // 18:53:20 UTC, and a line made for this request.
            let rule = "A rule that stands in front of all that changes here, whatever it is.\n".repeat(4);
            let text = format!("{rule}It is {}.\nrequest id: 0f8fad5b-d9cb-469f-a165-{n:012}\n{lines}", clock(&now));
            let asked = request("model", &[system(&text), user(question)], &[LIGHT]);
            let sent = bare.plan(&asked, &now).unwrap();
            let laid = laying.plan(&asked, &now).unwrap();
            let again = laying.plan(&asked, &now).unwrap();
            prop_assert_eq!((&again.prompt, &again.sections), (&laid.prompt, &laid.sections));
            if matches!(mode, LayoutMode::Off | LayoutMode::Observe) {
                prop_assert_eq!((&laid.prompt, &laid.sections), (&sent.prompt, &sent.sections));
                continue;
            }
            prop_assert!(!laid.moved.is_empty(), "clock and id move at first sight");
            prop_assert_eq!(sorted_lines(&laid), sorted_lines(&sent));
        }
    }
}

/// Lines of a prompt without hob's own and empty ones. A turn's first line begins behind its opening.
fn sorted_lines(planned: &Planned) -> Vec<String> {
    let text = Bytes::new().decode(&planned.prompt.tokens).replace(['⟦', '⟧'], "\n");
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("[As of "));
    let mut lines: Vec<String> = lines.map(str::to_owned).collect();
    lines.sort_unstable();
    lines
}

fn clock(now: &Moment) -> String {
    format!("{:02}:{:02}:{:02}", now.unix_s / 3600 % 24, now.unix_s / 60 % 60, now.unix_s % 60)
}

fn mode() -> impl Strategy<Value = LayoutMode> {
    prop::sample::select(LayoutMode::NAMES.map(|(_, mode)| mode).to_vec())
}

/// Lines that come, go and change; no headings, which may be said twice.
fn lines() -> impl Strategy<Value = String> {
    let line = prop::sample::select(vec![
        "- lamp: on",
        "- lamp: off",
        "- fan: on",
        "  with a child",
        "| a | 1 |",
        "| a | 2 |",
        "mode = eco",
        "mode = hot",
        "Be kind.",
        "You are in the kitchen.",
        "You are in the hall.",
        "",
        "```",
        "* <|im_end|>",
        "é 🏠",
        "The kitchen is where people of this house eat, and\nwhere they talk.",
    ]);
    prop::collection::vec(line, 0..8).prop_map(|lines| lines.join("\n"))
}

fn check_cuts(prompt: &TokenPrompt) {
    assert!(prompt.cuts.is_sorted_by(|a, b| a < b));
    for &cut in &prompt.cuts {
        assert!((1..prompt.tokens.len()).contains(&cut));
        assert!(prompt.tokens[cut - 1].0 < 12, "a cut stands right after a control token");
    }
}

fn style() -> impl Strategy<Value = Style> {
    prop::sample::select(vec![Style::Plain, Style::ToolsAfter, Style::ToolsBefore, Style::Shared])
}

fn text() -> impl Strategy<Value = String> {
    let piece =
        prop::sample::select(vec!["a", "one", "two", " ", "\n", "é", "🏠", "<|im_end|>", "<|end", "<s>", "Noted."]);
    prop::collection::vec(piece, 1..6).prop_map(|pieces| pieces.concat())
}

fn any_profile() -> impl Strategy<Value = Profile> {
    (prop::option::of(text()), any::<bool>(), prop::collection::vec(text(), 0..3)).prop_map(
        |(system, has_tools, documents)| Profile {
            system: system.unwrap_or_default(),
            tools: if has_tools { vec![LIGHT.to_string()] } else { vec![] },
            documents: documents.into_iter().map(|text| Document { title: "d".into(), text }).collect(),
            ..house()
        },
    )
}
