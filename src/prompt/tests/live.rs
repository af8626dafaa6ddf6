//! Live context through the planner: what moves, what stays byte for byte, what is shared, what outlives a restart.

use super::*;
use crate::prompt::Cause;
use crate::request::{LayoutMode, Owner};

/// 2026-11-30 20:06:10 UTC.
pub(super) const START: i64 = 1_796_069_170;
const RULES: &str = "You are the voice of this house and answer briefly.\n\nUse the tools that you are given.";

pub(super) fn laying(mode: LayoutMode, n_context_tokens: usize, file: Option<&Path>) -> Planner {
    let planner = planner(Bytes::new(), Template::new(Style::ToolsAfter), vec![house()]);
    planner.with_layout(Layout { mode, n_context_tokens, file: file.map(Path::to_owned) })
}

/// A system text with the time in front.
pub(super) fn clocked(now: i64) -> Message {
    let of_day = now.rem_euclid(24 * 3600);
    system(&format!("Current time: {:02}:{:02}:{:02}\n{RULES}", of_day / 3600, of_day / 60 % 60, of_day % 60))
}

/// A system text with a token made for this request alone: true at any time.
fn numbered(n: usize) -> Message {
    system(&format!("request id: 0f8fad5b-d9cb-469f-a165-{n:012}\n{RULES}"))
}

pub(super) fn n_common(a: &Planned, b: &Planned) -> usize {
    a.prompt.tokens.iter().zip(&b.prompt.tokens).take_while(|(a, b)| a == b).count()
}

pub(super) fn shown(planned: &Planned, n_tokens: usize) -> String {
    Bytes::new().decode(&planned.prompt.tokens[..n_tokens])
}

pub(super) fn spoken(planned: &Planned, text: &str) -> Spoken {
    Spoken {
        owner: request("model", &[], &[]).client.owner(),
        opening: planned.opening.clone(),
        record: planned.record,
        text: text.into(),
        calls: Vec::new(),
        tokens: Bytes::new().tokenize(text, Special::Text),
    }
}

#[test]
fn off_and_observe_change_no_byte() {
    let mut bare = planner(Bytes::new(), Template::new(Style::ToolsAfter), vec![house()]);
    for mode in [LayoutMode::Off, LayoutMode::Observe] {
        let mut planner = laying(mode, 1 << 20, None);
        for n in 0..5 {
            let now = START + 700 * n;
            for model in ["model", "house"] {
                let asked = request(model, &[clocked(now), user(&format!("Question {n}"))], &[LIGHT]);
                let planned = planner.plan(&asked, &Moment::utc(now)).unwrap();
                let expected = bare.plan(&asked, &NOW).unwrap();
                assert_eq!((&planned.prompt, &planned.sections), (&expected.prompt, &expected.sections));
                assert_eq!(planned.record, None);
                assert_eq!(
                    planned.moved.len(),
                    usize::from(mode == LayoutMode::Observe),
                    "observe says what would move"
                );
                assert!(planned.moved.iter().all(|moved| moved.is_clock && moved.to_message.is_none()));
                assert_eq!(planned.n_gained_bytes > 0, mode == LayoutMode::Observe && n > 0);
            }
        }
    }
}

#[test]
fn a_clock_at_the_front_stands_before_the_question_and_the_rest_is_shared() {
    let mut planner = laying(LayoutMode::Safe, 1 << 20, None);
    let mut ask = |now, question: &str| {
        planner.plan(&request("model", &[clocked(now), user(question)], &[LIGHT]), &Moment::utc(now)).unwrap()
    };
    let first = ask(START, "Is the oven on?");
    insta::assert_snapshot!(show(&first), @r#"
    ⟦<|im_start|>⟧system
    You are the voice of this house and answer briefly.

    Use the tools that you are given.

    <tools>
    {"type":"function","function":{"name":"light","description":"Switches."}}
    </tools>⟦<|im_end|>⟧
    ⟦<|im_start|>⟧✂user
    [As of Monday 2026-11-30 20:06 UTC:]
    Current time: 20:06:10

    Is the oven on?⟦<|im_end|>⟧
    ⟦<|im_start|>⟧assistant
    ---
    Session client system: 86
    Fixed tools: 79 ✂
    Turn question: 15
    Live live: 61
    "#);
    let [moved] = &first.moved[..] else { panic!("one text moved: {:?}", first.moved) };
    assert_eq!((&*moved.text, moved.from_message, moved.to_message), ("Current time: 20:06:10", 0, Some(1)));
    assert_eq!(first.live_cause, Cause::New);
    assert_eq!(ask(START, "Is the oven on?").prompt, first.prompt, "a retry gets equal bytes");

    let second = ask(START + 3725, "And the light?");
    let shared = shown(&second, n_common(&first, &second));
    let until_live = show(&second).split("[As of").next().unwrap().replace('✂', "");
    assert!(shared.starts_with(&until_live), "{shared}");
    assert!(second.prompt.cuts.iter().all(|&cut| cut <= n_common(&first, &second)));
}

#[test]
fn a_turn_that_was_answered_keeps_its_live_block_while_the_conversation_goes_on() {
    let mut planner = laying(LayoutMode::Safe, 1 << 20, None);
    let first =
        planner.plan(&request("model", &[clocked(START), user("Oven?")], &[LIGHT]), &Moment::utc(START)).unwrap();
    planner.remember(&spoken(&first, "It is off."));
    let later = START + 600;
    let messages = [clocked(later), user("Oven?"), assistant("It is off."), user("And the light?")];
    let second = planner.plan(&request("model", &messages, &[LIGHT]), &Moment::utc(later)).unwrap();
    assert_eq!(second.live_cause, Cause::Appended);
    assert!(second.prompt.tokens.starts_with(&first.prompt.tokens));
    let text = shown(&second, second.prompt.tokens.len());
    assert!(text.ends_with(
        "It is off.⟦<|im_end|>⟧\n⟦<|im_start|>⟧user\n[As of Monday 2026-11-30 20:16 UTC:]\nCurrent time: 20:16:10\n\n\
         And the light?⟦<|im_end|>⟧\n⟦<|im_start|>⟧assistant\n"
    ));
    let class = |section: &Section| (section.name.clone(), section.n_bytes);
    let last: Vec<_> = second.sections.iter().rev().take(3).map(class).collect();
    assert_eq!(last, [("live".into(), 122), ("question".into(), 14), ("history".into(), 15)]);
}

#[test]
fn the_answer_tells_two_conversations_with_the_same_question_apart() {
    let mut planner = laying(LayoutMode::Safe, 1 << 20, None);
    let conversations: Vec<(Planned, &str)> = [(START, "It is off."), (START + 700, "It is on.")]
        .map(|(now, answer)| {
            let asked = request("model", &[clocked(now), user("Oven?")], &[LIGHT]);
            let planned = planner.plan(&asked, &Moment::utc(now)).unwrap();
            planner.remember(&spoken(&planned, answer));
            (planned, answer)
        })
        .into();
    let now = START + 1400;
    for (first, answer) in conversations {
        let messages = [clocked(now), user("Oven?"), assistant(answer), user("And the light?")];
        let second = planner.plan(&request("model", &messages, &[LIGHT]), &Moment::utc(now)).unwrap();
        assert!(second.prompt.tokens.starts_with(&first.prompt.tokens), "{answer}");
    }
}

#[test]
fn a_profiles_client_has_its_own_system_text_laid_out_and_the_head_stays() {
    let mut planner = laying(LayoutMode::Safe, 1 << 20, None);
    let pin = planner.pins().unwrap().remove(0);
    let asked = request("house", &[clocked(START), user("Is the oven on?")], &[]);
    let planned = planner.plan(&asked, &Moment::utc(START)).unwrap();
    assert!(planned.prompt.tokens.starts_with(&pin.prompt.tokens));
    let text = shown(&planned, planned.prompt.tokens.len());
    assert!(text.contains(&format!("user\n{RULES}⟦<|im_end|>⟧")), "{text}");
    assert!(text.contains("Current time: 20:06:10\n\nIs the oven on?"), "{text}");
}

#[test]
fn what_hob_adds_gives_way_before_a_prompt_is_too_long() {
    let question = "A question. ".repeat(20);
    let asked = request("model", &[clocked(START), user(&question)], &[]);
    let now = Moment::utc(START);
    let sent = laying(LayoutMode::Off, 1 << 20, None).plan(&asked, &now).unwrap();
    let laid = laying(LayoutMode::Safe, 1 << 20, None).plan(&asked, &now).unwrap();
    assert!(laid.prompt.tokens.len() > sent.prompt.tokens.len());

    let with_context = |n| laying(LayoutMode::Safe, n, None).plan(&asked, &now).unwrap();
    assert_eq!(with_context(laid.prompt.tokens.len() + 1).prompt, laid.prompt);
    let short = with_context(laid.prompt.tokens.len());
    assert_eq!((short.prompt, short.record), (sent.prompt, None));
}

#[test]
fn a_long_past_is_said_once_before_it_is_left_out() {
    // Ten answered turns, each with a time of its own.
    let talk = |planner: &mut Planner| {
        let mut turns = Vec::new();
        for n in 0..10 {
            let now = START + 700 * n;
            // The last one is so long that what is stale is little beside it.
            turns.push(user(&format!("Question {n}{}", " please".repeat(if n == 9 { 1000 } else { 0 }))));
            let messages: Vec<Message> = [clocked(now)].into_iter().chain(turns.iter().cloned()).collect();
            let planned = planner.plan(&request("model", &messages, &[]), &Moment::utc(now)).unwrap();
            planner.remember(&spoken(&planned, "Yes."));
            turns.push(assistant("Yes."));
            if n == 9 {
                return planned;
            }
        }
        unreachable!("the last turn returns")
    };
    let long = talk(&mut laying(LayoutMode::Safe, 1 << 20, None));
    assert_eq!(long.live_cause, Cause::Appended);
    let n_context = long.prompt.tokens.len();
    let short = talk(&mut laying(LayoutMode::Safe, n_context, None));
    assert_eq!(short.live_cause, Cause::Compacted);
    assert!(short.prompt.tokens.len() < n_context);
    assert_eq!(shown(&short, short.prompt.tokens.len()).matches("[As of").count(), 1);
}

#[test]
fn what_is_only_counted_is_no_evidence() {
    let mut planner = laying(LayoutMode::Safe, 1 << 20, None);
    let asked = |n: usize| {
        let states = format!("# States\n- oven: {n}\n- door: shut\n- light: on");
        request("model", &[system(&format!("{RULES}\n\n{states}")), user("Oven?")], &[])
    };
    let at = |n: usize| Moment::utc(START + 4_000 * n as i64);
    for n in 0..4 {
        planner.count(&asked(n), &at(n)).unwrap();
    }
    let mut n_moved = |n: usize| planner.plan(&asked(n), &at(n)).unwrap().moved.len();
    let after_counts: Vec<usize> = (4..8).map(&mut n_moved).collect();
    let mut fresh = laying(LayoutMode::Safe, 1 << 20, None);
    let as_ever: Vec<usize> = (4..8).map(|n| fresh.plan(&asked(n), &at(n)).unwrap().moved.len()).collect();
    assert_eq!(after_counts, as_ever);
    assert_eq!((as_ever[0], as_ever[3]), (0, 1), "asked, they are evidence");
}

#[test]
fn a_request_chooses_its_own_layout() {
    let mut planner = laying(LayoutMode::Off, 1 << 20, None);
    let mut asked = request("model", &[clocked(START), user("Hi")], &[]);
    let mut n_moved = |layout| {
        asked.layout = layout;
        planner.plan(&asked, &Moment::utc(START)).unwrap().moved.len()
    };
    assert_eq!(n_moved(None), 0);
    assert_eq!(n_moved(Some(LayoutMode::Safe)), 1);
    assert_eq!(n_moved(Some(LayoutMode::Off)), 0);
}

/// Plans on a thread of its own, as the daemon does, until the door is closed.
async fn on_thread(planner: Planner, work: impl AsyncFnOnce(&PlannerHandle)) {
    let (handle, inbox) = PlannerHandle::new(4);
    let thread = std::thread::spawn(move || planner.run(inbox));
    work(&handle).await;
    drop(handle);
    thread.join().unwrap();
}

#[tokio::test]
async fn what_was_learnt_outlives_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("state/layout");
    let mut first = None;
    on_thread(laying(LayoutMode::Safe, 1 << 20, Some(&file)), async |handle| {
        let planned = handle.plan(request("model", &[numbered(1), user("Oven?")], &[])).await.unwrap();
        handle.remember(spoken(&planned, "It is off."));
        first = Some(planned);
    })
    .await;
    let first = first.unwrap();
    assert_eq!(first.moved.len(), 1);

    let messages = [numbered(2), user("Oven?"), assistant("It is off."), user("And the light?")];
    let asked = request("model", &messages, &[]);
    on_thread(laying(LayoutMode::Safe, 1 << 20, Some(&file)), async |handle| {
        let second = handle.plan(asked.clone()).await.unwrap();
        assert_eq!(second.live_cause, Cause::Appended);
        // The ids of the answer are forgotten, the text is not.
        let text = |planned: &Planned| shown(planned, planned.prompt.tokens.len());
        assert!(text(&second).starts_with(&text(&first)));
    })
    .await;
    // Without the file the past is rendered bare.
    let forgetful = laying(LayoutMode::Safe, 1 << 20, None).plan(&asked, &Moment::utc(START)).unwrap();
    assert_eq!(forgetful.live_cause, Cause::Trimmed);
}

#[tokio::test]
async fn what_was_learnt_is_forgotten_when_asked_in_the_file_too() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("layout");
    let messages = [numbered(2), user("Oven?"), assistant("It is off."), user("And the light?")];
    let asked = request("model", &messages, &[]);
    let owner = asked.client.owner();
    for (whose, expected) in
        [(Some(owner), Cause::Trimmed), (Some(Owner::Private([0; 32])), Cause::Appended), (None, Cause::Trimmed)]
    {
        on_thread(laying(LayoutMode::Safe, 1 << 20, Some(&file)), async |handle| {
            handle.plan(request("model", &[numbered(1), user("Oven?")], &[])).await.unwrap();
            handle.forget(whose).await.unwrap();
            // What is in the file now is all that another start would know.
            let mut other = laying(LayoutMode::Safe, 1 << 20, Some(&file));
            assert_eq!(other.plan(&asked, &Moment::now()).unwrap().live_cause, expected, "{whose:?}");
            assert_eq!(handle.plan(asked.clone()).await.unwrap().live_cause, expected, "{whose:?}");
            handle.forget(None).await.unwrap();
        })
        .await;
    }
}

#[tokio::test]
async fn a_file_that_cannot_be_used_costs_what_was_learnt_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("layout");
    std::fs::write(&file, "no layout").unwrap();
    on_thread(laying(LayoutMode::Safe, 1 << 20, Some(&file)), async |handle| {
        let planned = handle.plan(request("model", &[numbered(1), user("Oven?")], &[])).await.unwrap();
        assert_eq!(planned.moved.len(), 1);
    })
    .await;
    assert!(std::fs::read_to_string(&file).unwrap().starts_with("hob live "), "it is replaced");
}

#[tokio::test]
async fn a_house_that_lays_nothing_out_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("state/layout");
    on_thread(laying(LayoutMode::Off, 1 << 20, Some(&file)), async |handle| {
        handle.plan(request("model", &[numbered(1), user("Oven?")], &[])).await.unwrap();
    })
    .await;
    assert!(!file.parent().unwrap().exists());
}

#[test]
fn what_a_client_marked_for_its_own_cache_stays_but_for_a_nonce_at_its_front() {
    let billing = "x-anthropic-billing-header: cc_version=2.1.36; cc_entrypoint=cli; cch=a1b2c;";
    let time = "Current time: 20:06:10";
    let moved = |system: String, n_marked_bytes| {
        let system = Message { n_marked_bytes, ..Message::text(Role::System, system) };
        let asked = request("model", &[system, user("Oven?")], &[]);
        let planned = laying(LayoutMode::Safe, 1 << 20, None).plan(&asked, &Moment::utc(START)).unwrap();
        planned.moved.iter().map(|moved| moved.text.to_string()).collect::<Vec<_>>()
    };
    let text = format!("{time}\n{RULES}");
    assert_eq!(moved(text.clone(), 0), [time]);
    assert_eq!(moved(text.clone(), text.len()), [""; 0]);
    // The mark ends before the time.
    assert_eq!(moved(format!("{RULES}\n{time}"), RULES.len()), [time]);
    let text = format!("{billing}\n{time}\n{RULES}");
    assert_eq!(moved(text.clone(), text.len()), [billing]);
    // Elsewhere it is what the client says it is.
    let text = format!("{RULES}\n{billing}");
    assert_eq!(moved(text.clone(), text.len()), [""; 0]);
}

#[test]
fn owners_do_not_share_what_was_learnt() {
    let mut planner = laying(LayoutMode::Safe, 1 << 20, None);
    let mut asked = request("model", &[clocked(START), user("Oven?")], &[]);
    let first = planner.plan(&asked, &Moment::utc(START)).unwrap();
    planner.remember(&spoken(&first, "It is off."));
    asked.messages = vec![clocked(START + 700), user("Oven?"), assistant("It is off."), user("And now?")];
    asked.client.name = "another".into();
    assert_ne!(asked.client.owner(), Owner::Public);
    assert_eq!(planner.plan(&asked, &Moment::utc(START + 700)).unwrap().live_cause, Cause::Trimmed);
}
