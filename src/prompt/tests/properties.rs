//! What holds for every request.

use proptest::prelude::*;

use super::*;

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
