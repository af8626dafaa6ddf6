//! Tools through the planner: their order and bytes in each mode, what outlives a restart, and calls that come back.

use proptest::prelude::*;
use proptest::sample::Index;

use super::live::{n_common, shown, spoken};
use super::*;
use crate::prompt::{ToolsOrder, ToolsUse};
use crate::request::{LayoutMode, Token};

const BLIND: &str = r#"{"type": "function", "function": {"name": "blind", "parameters": {"properties": {"room": {"type": "string", "enum": ["hall", "attic"]}, "level": {"type": "integer"}}, "required": ["room", "level"]}}}"#;
/// `BLIND` with other keys first, other white space, and sets in another order.
const BLIND_AGAIN: &str = r#"{"function":{"parameters":{"required":["level","room"],"properties":{"level":{"type":"integer"},
    "room":{"enum":["attic","hall"],"type":"string"}}},"name":"blind"},"type":"function"}"#;

fn laying(style: Style, mode: LayoutMode, file: Option<&Path>) -> Planner {
    let planner = planner(Bytes::new(), Template::new(style), vec![house()]);
    planner.with_layout(Layout { mode, n_context_tokens: 1 << 20, file: file.map(Path::to_owned) })
}

fn optimising() -> Planner {
    laying(Style::ToolsAfter, LayoutMode::Optimise, None)
}

fn asked(tools: &[&str]) -> Request {
    request("model", &[user("Hi")], tools)
}

fn plan_at(planner: &mut Planner, tools: &[&str]) -> Planned {
    planner.plan(&asked(tools), &NOW).unwrap()
}

/// The lines of the tools as rendered.
fn lines(planned: &Planned) -> String {
    let text = shown(planned, planned.prompt.tokens.len());
    let start = text.find("<tools>\n").unwrap() + "<tools>\n".len();
    text[start..text.find("\n</tools>").unwrap()].to_owned()
}

fn named(name: &str) -> String {
    format!(r#"{{"type": "function", "function": {{"name": "{name}"}}}}"#)
}

#[test]
fn a_set_is_rendered_as_it_first_was_whatever_its_order_keys_and_white_space() {
    let mut planner = optimising();
    let first = plan_at(&mut planner, &[LIGHT, BLIND, CLOCK]);
    insta::assert_snapshot!(lines(&first), @r#"
    {"type":"function","function":{"name":"light","description":"Switches."}}
    {"type":"function","function":{"name":"blind","parameters":{"properties":{"room":{"type":"string","enum":["hall","attic"]},"level":{"type":"integer"}},"required":["room","level"]}}}
    {"type":"function","function":{"name":"clock"}}
    "#);
    assert_eq!(first.tools, ToolsUse::default());
    let others =
        [[CLOCK, BLIND, LIGHT], [BLIND, LIGHT, CLOCK], [LIGHT, BLIND_AGAIN, CLOCK], [CLOCK, LIGHT, BLIND_AGAIN]];
    for other in others {
        let planned = plan_at(&mut planner, &other);
        assert_eq!((&planned.prompt, &planned.sections), (&first.prompt, &first.sections));
        assert_eq!(planned.tools.order, ToolsOrder::AsFirstSeen);
    }
    let again = plan_at(&mut planner, &[LIGHT, BLIND, CLOCK]);
    assert_eq!((again.prompt, again.tools), (first.prompt, first.tools));
}

/// No alphabet: the client's order of keys stays.
#[test]
fn parameters_stand_in_the_order_they_were_declared_in() {
    let tool = r#"{"type":"function","function":{"name":"fruit","parameters":{"type":"object","properties":{"zebra":{"type":"string"},"apple":{"type":"string"},"mango":{"type":"string"}}}}}"#;
    for mode in [LayoutMode::Off, LayoutMode::Safe, LayoutMode::Optimise] {
        let planned = plan_at(&mut laying(Style::ToolsAfter, mode, None), &[tool]);
        insta::allow_duplicates! {
            insta::assert_snapshot!(lines(&planned), @r#"{"type":"function","function":{"name":"fruit","parameters":{"type":"object","properties":{"zebra":{"type":"string"},"apple":{"type":"string"},"mango":{"type":"string"}}}}}"#);
        }
    }
}

#[test]
fn a_superset_keeps_the_order_and_appends_and_a_subset_is_a_prefix() {
    let mut planner = optimising();
    let [a, b, c, d, e] = ["a", "b", "c", "d", "e"].map(named);
    let mut plan = |tools: &[&String]| {
        let planned = plan_at(&mut planner, &tools.iter().map(|tool| tool.as_str()).collect::<Vec<_>>());
        let names: Vec<String> =
            lines(&planned).lines().map(|line| line.split('"').nth(9).unwrap().to_owned()).collect();
        (names.concat(), planned.tools.order)
    };
    assert_eq!(plan(&[&b, &a, &c]), ("bac".into(), ToolsOrder::AsSent));
    assert_eq!(plan(&[&a, &d, &b, &e, &c]), ("bacde".into(), ToolsOrder::Appended { n_new: 2 }));
    // From now on this is how that set is known.
    assert_eq!(plan(&[&a, &d, &b, &e, &c]), ("bacde".into(), ToolsOrder::AsFirstSeen));
    assert_eq!(plan(&[&e, &d, &a, &b, &c]), ("bacde".into(), ToolsOrder::AsFirstSeen));
    assert_eq!(plan(&[&a, &b]), ("ba".into(), ToolsOrder::Prefix));
    assert_eq!(plan(&[&a, &d, &c, &b]), ("bacd".into(), ToolsOrder::Prefix));
    assert_eq!(plan(&[&d, &e, &a, &b]), ("bade".into(), ToolsOrder::Partly { n_leading: 2 }));
    // What was in the client's order and begins nothing stays there.
    assert_eq!(plan(&[&e]), ("e".into(), ToolsOrder::AsSent));
}

#[test]
fn a_tool_that_changes_each_time_comes_to_stand_last() {
    let mut planner = optimising();
    let mut plan = |n: usize| {
        let changing = named(&format!("changing {n}"));
        plan_at(&mut planner, &[&changing, LIGHT, BLIND])
    };
    let (_, second, third) = (plan(1), plan(2), plan(3));
    assert_eq!(lines(&third), lines(&second).replace("changing 2", "changing 3"));
    let common = shown(&third, n_common(&second, &third));
    assert!(common.contains("light") && common.contains("blind") && common.contains("changing"), "{common}");
    assert_eq!(third.tools.order, ToolsOrder::Partly { n_leading: 2 });
}

#[test]
fn other_modes_change_no_byte_and_observe_counts_the_gain() {
    let sets = [
        vec![LIGHT, BLIND, CLOCK],
        vec![CLOCK, BLIND_AGAIN, LIGHT],
        vec![BLIND, LIGHT],
        vec![CLOCK, BLIND_AGAIN, LIGHT],
    ];
    for mode in [LayoutMode::Off, LayoutMode::Safe, LayoutMode::Observe] {
        let (mut planner, mut bare) =
            (laying(Style::ToolsAfter, mode, None), laying(Style::ToolsAfter, LayoutMode::Off, None));
        let gains: Vec<usize> = sets
            .iter()
            .map(|tools| {
                let planned = plan_at(&mut planner, tools);
                assert_eq!(planned.prompt, plan_at(&mut bare, tools).prompt, "{mode:?}");
                planned.tools.n_gained_bytes
            })
            .collect();
        // Nothing is known; all of it; two of three tools; what was sent so before is held as it was sent.
        let [light, blind, clock] = [LIGHT, BLIND, CLOCK].map(str::len);
        let expected = if mode == LayoutMode::Observe { [0, light + blind + clock, light + blind, 0] } else { [0; 4] };
        assert_eq!(gains, expected, "{mode:?}");
    }
}

#[test]
fn the_profiles_tools_in_any_order_hit_its_pin_in_optimise() {
    let mut profile = house();
    profile.tools = vec![LIGHT.into(), BLIND.into()];
    let pin_is_hit = |mode, tools: &[&str]| {
        let mut planner = planner(Bytes::new(), Template::new(Style::ToolsAfter), vec![profile.clone()])
            .with_layout(Layout { mode, n_context_tokens: 1 << 20, file: None });
        let pin = planner.pins().unwrap().remove(0);
        let planned = planner.plan(&request("house", &[system("Be brief."), user("Hi")], tools), &NOW).unwrap();
        (planned.prompt.tokens.starts_with(&pin.prompt.tokens), planned.tools.order)
    };
    let again = [BLIND_AGAIN, LIGHT];
    assert_eq!(pin_is_hit(LayoutMode::Optimise, &again), (true, ToolsOrder::AsFirstSeen));
    assert_eq!(pin_is_hit(LayoutMode::Safe, &again), (false, ToolsOrder::AsSent));
    assert_eq!(pin_is_hit(LayoutMode::Safe, &[LIGHT, BLIND]), (true, ToolsOrder::AsSent));
    // More than the profile's begins like them.
    assert_eq!(
        pin_is_hit(LayoutMode::Optimise, &[CLOCK, BLIND_AGAIN, LIGHT]),
        (false, ToolsOrder::Appended { n_new: 1 })
    );
}

#[test]
fn sets_are_known_to_their_owner_and_for_their_model_alone() {
    let mut planner = optimising();
    plan_at(&mut planner, &[LIGHT, BLIND]);
    let mut other = asked(&[BLIND_AGAIN, LIGHT]);
    other.client.salt = Some("another".into());
    assert_eq!(planner.plan(&other, &NOW).unwrap().tools, ToolsUse::default());
    let other = planner.plan(&request("house", &[user("Hi")], &[CLOCK, BLIND]), &NOW).unwrap();
    assert_eq!(other.tools, ToolsUse::default());
    assert_eq!(plan_at(&mut planner, &[BLIND_AGAIN, LIGHT]).tools.order, ToolsOrder::AsFirstSeen);
}

#[tokio::test]
async fn sets_outlive_a_restart_and_a_lost_file_costs_their_order_only() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("state/layout");
    let plan = async |tools: &[&str]| {
        let (handle, inbox) = PlannerHandle::new(4);
        let planner = laying(Style::ToolsAfter, LayoutMode::Optimise, Some(&file));
        let thread = std::thread::spawn(move || planner.run(inbox));
        let planned = handle.plan(asked(tools)).await.unwrap();
        drop(handle);
        thread.join().unwrap();
        planned
    };
    let first = plan(&[LIGHT, BLIND]).await;
    let second = plan(&[BLIND_AGAIN, LIGHT]).await;
    assert_eq!(second.prompt, first.prompt);
    // No cell outlived the restart, too.
    assert_eq!(second.tools, ToolsUse { order: ToolsOrder::AsFirstSeen, n_gained_bytes: 0 });
    std::fs::remove_file(&file).unwrap();
    let third = plan(&[BLIND_AGAIN, LIGHT]).await;
    assert_eq!(third.tools, ToolsUse::default());
    assert_ne!(third.prompt, first.prompt);
}

#[test]
fn what_is_wrong_with_a_tool_is_told_by_its_place_in_the_request() {
    let mut planner = optimising();
    plan_at(&mut planner, &[LIGHT, CLOCK]);
    let bad = named("\u{100000}");
    let error = planner.plan(&asked(&[&bad, CLOCK, LIGHT]), &NOW).unwrap_err();
    assert_eq!(error.to_string(), "tools[0] holds the character U+100000, which is reserved");
}

#[test]
fn an_echoed_call_keeps_the_tokens_it_was_said_in() {
    let said = r#"<call>light {"level":50,"room":"kitch\u0065n"}</call>"#;
    let sent_back = r#"{"room": "kitchen", "level": 50.0}"#;
    // What hob sends today, a text that its client reads a call in; and a call that was read before it was sent.
    for is_read in [false, true] {
        let mut planner = optimising();
        let first = plan_at(&mut planner, &[LIGHT]);
        let mut answer = spoken(&first, said);
        if is_read {
            answer.text = String::new();
            answer.calls = vec![call("light", r#"{"level": 50, "room": "kitchen"}"#)];
        }
        planner.remember(&answer);
        let calling = |arguments: &str| Message { tool_calls: vec![call("light", arguments)], ..assistant("") };
        let mut plan = |arguments: &str| {
            let messages = [user("Hi"), calling(arguments), tool("done")];
            planner.plan(&request("model", &messages, &[LIGHT]), &NOW).unwrap()
        };
        let held: Vec<Token> = first.prompt.tokens.iter().chain(&answer.tokens).copied().collect();
        assert!(plan(sent_back).prompt.tokens.starts_with(&held));
        assert!(plan(sent_back).prompt.tokens.starts_with(&held), "known by its text from now on");
        let other = plan(r#"{"room": "hall", "level": 50}"#);
        let text = shown(&other, other.prompt.tokens.len());
        assert!(!other.prompt.tokens.starts_with(&held) && text.contains("hall"), "{text}");
    }
}

#[test]
fn a_text_that_looks_like_a_call_is_not_respelled() {
    let mut planner = optimising();
    let first = plan_at(&mut planner, &[LIGHT]);
    planner.remember(&spoken(&first, r#"{"b": 1, "a": 2}"#));
    let edited = [user("Hi"), assistant(r#"{"a": 2, "b": 1}"#), user("Go on")];
    let second = planner.plan(&request("model", &edited, &[LIGHT]), &NOW).unwrap();
    assert!(shown(&second, second.prompt.tokens.len()).contains(r#"{"a": 2, "b": 1}"#));
}

#[test]
fn thoughts_that_a_template_drops_cost_their_turn_and_no_more() {
    let mut planner = planner(Bytes::new(), Template::without_thoughts(Style::ToolsAfter), vec![])
        .with_layout(Layout { mode: LayoutMode::Optimise, n_context_tokens: 1 << 20, file: None });
    let mut messages = Vec::new();
    let mut before: Option<(Planned, Vec<Token>)> = None;
    for n in 0..4 {
        messages.push(user(&format!("Question {n}")));
        let planned = planner.plan(&request("model", &messages, &[LIGHT]), &NOW).unwrap();
        if let Some((before, said)) = &before {
            // All up to the answer; of that nothing behind its opening, since the thoughts stood first.
            assert!(planned.prompt.tokens.starts_with(&before.prompt.tokens[..before.prompt.tokens.len() - 1]));
            let cells: Vec<Token> = before.prompt.tokens.iter().chain(said).copied().collect();
            assert!(!planned.prompt.tokens.starts_with(&cells));
        }
        let answer = spoken(&planned, &format!("<think>Hm {n}.</think>\n\nAnswer {n}."));
        planner.remember(&answer);
        messages.push(assistant(&answer.text));
        before = Some((planned, answer.tokens));
    }
}

#[test]
fn calls_made_at_once_are_parted_where_the_template_shows_one() {
    let calls = [("a", r#"{"room": "hall"}"#), ("b", r#"{"room": "attic"}"#)]
        .map(|(id, arguments)| ToolCall { id: Some(id.into()), ..call("light", arguments) });
    let result = |id: &str, text: &str| Message { tool_call_id: Some(id.into()), ..tool(text) };
    let both = Message { tool_calls: calls.into(), ..assistant("Both.") };
    let messages = [user("All on"), both, result("b", "attic on"), result("a", "hall on")];
    let asked = request("model", &messages, &[LIGHT]);
    for is_refused in [true, false] {
        let planned = planner(Bytes::new(), Template::one_call(Style::ToolsAfter, is_refused), vec![])
            .plan(&asked, &NOW)
            .unwrap();
        let text = shown(&planned, planned.prompt.tokens.len());
        insta::allow_duplicates! {
            insta::assert_snapshot!(&text[text.find("⟦<|im_start|>⟧user").unwrap()..], @r#"
            ⟦<|im_start|>⟧user
            All on⟦<|im_end|>⟧
            ⟦<|im_start|>⟧assistant
            Both.<call>light {"room":"hall"}</call>⟦<|im_end|>⟧
            ⟦<|im_start|>⟧tool
            hall on⟦<|im_end|>⟧
            ⟦<|im_start|>⟧assistant
            <call>light {"room":"attic"}</call>⟦<|im_end|>⟧
            ⟦<|im_start|>⟧tool
            attic on⟦<|im_end|>⟧
            ⟦<|im_start|>⟧assistant
            "#);
        }
    }
    let shown_both = plan(Style::ToolsAfter, asked);
    assert!(shown(&shown_both, shown_both.prompt.tokens.len()).contains("</call><call>"));
}

proptest! {
    /// For any requests in a row: each tool once, by what it says; an equal request gets an equal prompt.
    #[test]
    fn the_tools_of_a_request_are_kept_and_planned_again_the_same(
        requests in prop::collection::vec(prop::collection::vec((0..6_usize, any::<Index>(), any::<bool>()), 1..6), 1..8),
        style in prop::sample::select(vec![Style::Plain, Style::ToolsAfter, Style::ToolsBefore, Style::Shared]),
        model in prop::sample::select(vec!["model", "house"]),
    ) {
        // Two spellings of each tool.
        let written = |(tool, spelling): (usize, bool)| match spelling {
            true => format!(r#"{{"type": "function", "function": {{"name": "tool {tool}", "strict": {tool}}}}}"#),
            false => format!(r#"{{"function":{{"strict":{tool}.0,"name":"tool {tool}"}},"type":"function"}}"#),
        };
        let mut planner = laying(style, LayoutMode::Optimise, None);
        for drawn in requests {
            let mut tools: Vec<String> = Vec::new();
            for (tool, at, spelling) in drawn {
                tools.insert(at.index(tools.len() + 1), written((tool, spelling)));
            }
            let asked = Request { tools: tools.clone(), ..request(model, &[user("Hi")], &[]) };
            let planned = planner.plan(&asked, &NOW).unwrap();
            let text = shown(&planned, planned.prompt.tokens.len());
            for tool in 0..6 {
                let name = format!("\"tool {tool}\"");
                let n_asked = tools.iter().filter(|tool| tool.contains(&name)).count();
                prop_assert_eq!(text.matches(&name).count(), n_asked, "{}", text);
            }
            let again = planner.plan(&asked, &NOW).unwrap();
            prop_assert_eq!((again.prompt, again.sections), (planned.prompt, planned.sections));
        }
    }
}
