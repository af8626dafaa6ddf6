//! Conversations as clients have them.

use super::*;

/// A home's prompt: a clock, a list, a room.
fn home(now: i64, room: &str, lamp: &str) -> Message {
    let time = clock(now);
    system(format!(
        "You are the voice of this house and answer briefly.\nIt is {time} now.\n\nDevices:\n- heater: warm\n\
         - lamp: {lamp}\n- door: shut\n\nUse the tools that you are given and never guess a state.\nYou are in the {room}."
    ))
}

/// A house that knows that rooms and lamps change.
fn taught(mode: Mode) -> House {
    let mut house = House::new(mode);
    for (room, lamp) in [("kitchen", "on"), ("bedroom", "off"), ("kitchen", "on")] {
        house.now += 700;
        house.lay(&[home(house.now, room, lamp), user("Hello")]);
    }
    house.now += 4000;
    house
}

fn block(laid: &Laid, message_idx: usize) -> String {
    let block = laid.live.iter().find(|block| block.message_idx == message_idx);
    block.map(|block| laid.messages[message_idx].content[..block.n_bytes].to_string()).unwrap_or_default()
}

#[test]
fn a_clock_moves_at_first_sight_and_the_next_turn_appends() {
    let mut house = House::new(Mode::Safe);
    let question = [home(house.now, "kitchen", "on"), user("Is it late?")];
    let first = house.lay(&question);
    insta::assert_snapshot!(render(&first), @r"
    system: You are the voice of this house and answer briefly.

    Devices:
    - heater: warm
    - lamp: on
    - door: shut

    Use the tools that you are given and never guess a state.
    You are in the kitchen.
    user: [As of Monday 2026-11-30 19:27 CET:]
    It is 19:27:50 now.

    Is it late?
    ");
    assert_eq!(first.cause, Cause::New);

    house.now += 30;
    let next = [home(house.now, "kitchen", "on"), question[1].clone(), assistant("No."), user("And now?")];
    let second = house.lay(&next);
    assert_eq!(second.cause, Cause::Appended);
    assert_eq!(second.messages[..2], first.messages[..]);
    assert_eq!(block(&second, 3), "[As of Monday 2026-11-30 19:28 CET:]\nIt is 19:28:20 now.\n\n");
}

fn render(laid: &Laid) -> String {
    let lines = laid.messages.iter().map(|message| format!("{}: {}", message.role.template_name(), message.content));
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn a_known_state_moves_with_its_heading_and_is_told_to_be_gone() {
    let mut house = taught(Mode::Optimise);
    let now = house.now;
    let first = [home(now, "kitchen", "on"), user("Light?")];
    insta::assert_snapshot!(render(&house.lay(&first)), @r"
    system: You are the voice of this house and answer briefly.

    Devices:
    - heater: warm
    - door: shut

    Use the tools that you are given and never guess a state.
    user: [As of Monday 2026-11-30 21:09 CET:]
    It is 21:09:30 now.
    Devices:
    - lamp: on
    You are in the kitchen.

    Light?
    ");
    let without =
        home(now, "kitchen", "on").content.replace("- lamp: on\n", "").replace("\nYou are in the kitchen.", "");
    let second = house.lay(&[system(without), user("Light?"), assistant("On."), user("And now?")]);
    assert_eq!(
        block(&second, 3),
        "[As of Monday 2026-11-30 21:09 CET:]\nDevices:\nno longer: - lamp: on\nno longer: You are in the kitchen.\n\n"
    );
}

#[test]
fn safe_moves_sentences_only_from_the_very_end() {
    let rule = "Use the tools that you are given and never guess a state.";
    let rules: String =
        (0..20).map(|n| format!("This is rule {n} of this house and all who live here keep it.\n")).collect();
    let rules = rules + rule;
    let long = "and as long as anything stands on the stove no door is opened, no light is put out, ".repeat(3);
    // Whether the last of three texts lost what changed.
    let moves = |mode: Mode, texts: [Vec<String>; 3]| {
        let mut house = House::new(mode);
        let mut lay = |texts: &Vec<String>| {
            house.now += 4000;
            let leading: Vec<Message> = texts.iter().map(system).collect();
            house.lay(&[leading, vec![user(format!("Hello {}", house.now))]].concat()).live.len() == 1
        };
        texts.each_ref().map(&mut lay)[2]
    };
    let check = |write: &dyn Fn(&str) -> Vec<String>, in_safe: bool| {
        let texts = ["kitchen", "bedroom", "hall"].map(write);
        assert!(moves(Mode::Optimise, texts.clone()), "{texts:?}");
        assert_eq!(moves(Mode::Safe, texts.clone()), in_safe, "{texts:?}");
    };
    check(&|room| vec![format!("{rules}\nYou are in the {room}.")], true);
    check(&|room| vec![format!("{rules}\nYou are in the {room}.\nNo clock is in the {room}.\n")], true);
    check(&|room| vec![format!("{rules}\n\nYou are in the {room}.\n- lamp: on in the {room}")], true);
    check(&|room| vec![rules.clone(), format!("{rule}\nYou are in the {room}.")], true);
    // Something stays behind it, if only in another message.
    check(&|room| vec![format!("{rules}\nYou are in the {room}.\nIt has no clock.")], false);
    check(&|room| vec![format!("You are in the {room}.\n{rules}")], false);
    check(&|room| vec![format!("{rules}\nYou are in the {room}.\n{rule}")], false);
    check(&|room| vec![format!("{rules}\nYou are in the {room}."), rules.clone()], false);
    // A paragraph, on one line, on two, on four.
    check(&|room| vec![format!("{rules}\nYou are in the {room}, {long}")], false);
    check(
        &|room| vec![format!("{rules}\nYou are in the {room}, and as long as anything is on\nthe stove it stays so.")],
        false,
    );
    check(&|room| vec![format!("{rules}\nThis is {room}.\n{room} is eight.\nSay {room}.\n{room} sings.")], false);
    // Where a paragraph has stood, one is expected again.
    let mut house = House::new(Mode::Safe);
    let mut lay = |room: &str| {
        house.now += 4000;
        house.lay(&[system(format!("{rules}\n{room}")), user(format!("Hello {}", house.now))]).live.len()
    };
    assert_eq!(["You.", "I.", "We.", &long, "You."].map(&mut lay), [0, 0, 1, 0, 0]);
}

#[test]
fn the_same_words_from_two_rooms_with_interleaved_tool_loops_see_their_own_room_last() {
    let mut house = taught(Mode::Optimise);
    let rooms = ["kitchen", "bedroom"];
    let mut chats: Vec<Vec<Message>> = vec![vec![user("Light on")]; 2];
    let mut last: Vec<Vec<Message>> = vec![Vec::new(); 2];
    for step in 0..12 {
        for (room, (chat, last)) in rooms.iter().zip(chats.iter_mut().zip(&mut last)) {
            house.now += 7;
            let sent: Vec<Message> = [home(house.now, room, "on")].into_iter().chain(chat.clone()).collect();
            let laid = house.lay(&sent);
            assert!(laid.messages.starts_with(last), "{room} appends at step {step}");
            let text = render(&laid);
            let seen = |room: &str| text.rfind(&format!("in the {room}."));
            assert!(seen(room) > rooms.iter().filter(|other| *other != room).filter_map(|other| seen(other)).max());
            *last = laid.messages.to_vec();
            let (answer, next) = match step % 2 {
                0 => (call("light", r#"{"on": true}"#), tool("done")),
                _ => (assistant("It is on."), user("Light on")),
            };
            // Of one room alone it is known: that is no reason to take its past for the other's.
            if step % 2 == 0 && *room == "kitchen" {
                house.live.answered(laid.record.unwrap(), &answer);
            }
            chat.extend([answer, next]);
        }
    }
}

#[test]
fn asking_again_after_ten_minutes_tells_the_new_time() {
    let mut house = taught(Mode::Optimise);
    let chat = |now| vec![home(now, "kitchen", "on"), user("a"), assistant("b"), user("How late?")];
    let now = house.now;
    house.lay(&chat(now)[..2]);
    let first = house.lay(&chat(now));
    house.now += 600;
    let again = house.lay(&chat(house.now));
    assert_eq!(again.messages[..3], first.messages[..3]);
    assert!(block(&again, 3).contains(&clock(now + 600)));

    // Which of both answers the client keeps says which block stays.
    for (laid, answer) in [(&first, "old"), (&again, "new")] {
        house.live.answered(laid.record.unwrap(), &assistant(answer));
    }
    for (laid, answer) in [(&first, "old"), (&again, "new")] {
        let mut next = chat(house.now);
        next.extend([assistant(answer), user("Thanks")]);
        assert!(house.lay(&next).messages.starts_with(&laid.messages));
    }
}

#[test]
fn a_conversation_goes_on_from_its_own_past_though_another_one_said_the_same() {
    let mut house = taught(Mode::Optimise);
    let question = [user("Light?")];
    let goes_on = [user("Light?"), assistant("On."), user("Light?")];
    let ask = |house: &mut House, name: &str, turns: &[Message]| {
        house.conversation = Some(name.to_string());
        let sent: Vec<Message> = [home(house.now, "kitchen", "on")].into_iter().chain(turns.to_vec()).collect();
        let laid = house.lay(&sent);
        house.live.answered(laid.record.unwrap(), &assistant("On."));
        laid.messages.into_owned()
    };
    ask(&mut house, "hers", &question);
    house.now += 1;
    // His stands on what she was given a second ago; meanwhile she asks again, and is told the new time.
    let his = ask(&mut house, "his", &goes_on);
    let hers = ask(&mut house, "hers", &question);
    assert!(!his.starts_with(&hers));
    assert!(ask(&mut house, "hers", &goes_on).starts_with(&hers));
    // Who has no past here takes all of it over.
    assert_eq!(ask(&mut house, "a third one's", &goes_on)[..2], hers);
}

#[test]
fn an_edit_of_the_second_of_five_turns_keeps_the_first() {
    let mut house = taught(Mode::Optimise);
    let mut chat = Vec::new();
    let mut second = None;
    for turn in 0..5 {
        house.now += 100;
        chat.push(user(format!("Question {turn}")));
        let sent: Vec<Message> = [home(house.now, "kitchen", "on")].into_iter().chain(chat.clone()).collect();
        let laid = house.lay(&sent);
        if turn == 1 {
            second = Some(laid);
        }
        chat.push(assistant(format!("Answer {turn}")));
    }
    house.now += 100;
    let mut edited = vec![home(house.now, "kitchen", "on")];
    edited.extend_from_slice(&chat[..2]);
    edited.push(user("Another question"));
    let laid = house.lay(&edited);
    assert_eq!(laid.cause, Cause::Appended);
    assert_eq!(laid.messages[..3], second.unwrap().messages[..3]);
}

#[test]
fn twenty_five_rounds_with_a_history_trimmed_to_41_messages_stay_true() {
    let mut house = taught(Mode::Optimise);
    let mut chat: Vec<Message> = Vec::new();
    let mut causes = Vec::new();
    for round in 0..25 {
        house.now += 20;
        chat.push(user(format!("Question {round}")));
        for follow_up in [vec![call("light", "{}"), tool("{}")], vec![assistant("Done")]] {
            chat.drain(..chat.len().saturating_sub(40));
            let room = if round % 2 == 0 { "kitchen" } else { "bedroom" };
            let sent: Vec<Message> = [home(house.now, room, "on")].into_iter().chain(chat.clone()).collect();
            causes.push(house.lay(&sent).cause);
            chat.extend(follow_up);
        }
    }
    assert_eq!(causes[0], Cause::New);
    assert!(causes[1..20].iter().all(|cause| *cause == Cause::Appended), "{causes:?}");
    assert!(causes.contains(&Cause::Trimmed));
}

#[test]
fn a_restart_between_call_and_result_changes_nothing_if_the_records_are_kept() {
    let mut house = taught(Mode::Optimise);
    let question = vec![home(house.now, "kitchen", "on"), user("Light on")];
    let asked = house.lay(&question);
    let result = |now| {
        let call = [call("light", "{}"), tool("done")];
        [home(now, "kitchen", "on"), user("Light on")].into_iter().chain(call).collect::<Vec<_>>()
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("live");
    crate::prompt::store::save(&path, &house.live).unwrap();
    house.live = crate::prompt::store::load(&path).unwrap();
    house.now += 10;
    let told = house.lay(&result(house.now));
    assert!(told.messages.starts_with(&asked.messages));

    house.live = Live::default();
    house.now += 10;
    let told = house.lay(&result(house.now));
    assert_eq!(told.cause, Cause::Trimmed);
    assert_eq!(told.live.len(), 1, "in front of the question: {:?}", told.live);
    assert_eq!(told.live[0].message_idx, 1);
}

#[test]
fn a_tool_loop_older_than_a_minute_is_told_the_time_again() {
    let mut house = House::new(Mode::Safe);
    let mut chat = vec![user("Work")];
    let mut n_blocks = Vec::new();
    for _ in 0..5 {
        let sent: Vec<Message> = [home(house.now, "kitchen", "on")].into_iter().chain(chat.clone()).collect();
        n_blocks.push(house.lay(&sent).live.len());
        chat.extend([call("work", "{}"), tool("more")]);
        house.now += 40;
    }
    assert_eq!(n_blocks, [1, 1, 2, 2, 3]);
}

#[test]
fn a_state_that_changes_in_a_tool_loop_is_told_in_front_of_the_result() {
    let mut house = taught(Mode::Optimise);
    let now = house.now;
    let asked = house.lay(&[home(now, "kitchen", "off"), user("Light on")]);
    let told = house.lay(&[home(now, "kitchen", "on"), user("Light on"), call("light", "{}"), tool("done")]);
    assert!(told.messages.starts_with(&asked.messages));
    assert_eq!(block(&told, 3), "[As of Monday 2026-11-30 21:09 CET:]\nDevices:\n- lamp: on\n\n");
}

#[test]
fn a_history_that_begins_with_an_orphaned_result_is_no_error() {
    let mut house = taught(Mode::Optimise);
    let laid = house.lay(&[home(house.now, "kitchen", "on"), tool("done"), assistant("It is on."), user("Thanks")]);
    assert_eq!(laid.cause, Cause::Trimmed);
    let alone = house.lay(&[home(house.now, "kitchen", "on"), tool("done")]);
    assert_eq!(alone.live[0].message_idx, 1);
}

#[test]
fn a_system_message_in_mid_conversation_stays_and_is_not_a_turn() {
    let mut house = taught(Mode::Optimise);
    let note = system(format!("It is {} now.", clock(house.now)));
    let first = house.lay(&[home(house.now, "kitchen", "on"), user("a")]);
    let chat = [home(house.now, "kitchen", "on"), user("a"), assistant("b"), note.clone(), user("c")];
    let laid = house.lay(&chat);
    assert!(laid.messages.starts_with(&first.messages));
    assert_eq!(laid.messages[3], note);
}

#[test]
fn stale_blocks_are_compacted_at_a_new_turn_and_what_follows_appends() {
    let mut house = taught(Mode::Optimise);
    house.n_context_tokens = 640;
    let mut chat = Vec::new();
    let mut compacted = Vec::new();
    let mut last: Vec<Message> = Vec::new();
    for turn in 0..12 {
        house.now += 100;
        chat.push(user(format!("Question {turn}")));
        let room = if turn % 2 == 0 { "kitchen" } else { "bedroom" };
        let sent: Vec<Message> = [home(house.now, room, "on")].into_iter().chain(chat.clone()).collect();
        let laid = house.lay(&sent);
        if laid.cause == Cause::Compacted {
            compacted.push(turn);
            assert_eq!(laid.live.len(), 1);
        } else {
            assert!(laid.messages.starts_with(&last), "turn {turn} appends");
        }
        last = laid.messages.to_vec();
        chat.push(assistant("Well."));
    }
    assert_eq!(compacted, [4, 8]);
}

#[test]
fn a_prompt_that_must_be_shorter_is_compacted_for_good() {
    let mut house = taught(Mode::Optimise);
    let chat = |now| vec![home(now, "kitchen", "on"), user("a"), assistant("b"), user("c")];
    house.lay(&chat(house.now)[..2]);
    let long = house.lay(&chat(house.now));
    house.fit = Fit::Compact;
    let short = house.lay(&chat(house.now));
    assert_eq!((long.cause, short.cause), (Cause::Appended, Cause::Compacted));
    house.fit = Fit::Free;
    assert_eq!(house.lay(&chat(house.now)).messages, short.messages);
    let next: Vec<Message> = chat(house.now).into_iter().chain([assistant("d"), user("e")]).collect();
    assert!(house.lay(&next).messages.starts_with(&short.messages));
}

#[test]
fn a_nonce_line_moves_and_words_like_it_in_a_question_stay() {
    let mut house = House::new(Mode::Safe);
    let prompt = |nonce: &str| {
        [
            system(format!("x-billing: nonce={nonce};")),
            system("You are a coding agent.\nYou write Rust and you never guess what a file holds."),
            user(format!("What is this? x-billing: nonce={nonce};")),
        ]
    };
    let (first, second) = (house.lay(&prompt("aaaaa")), house.lay(&prompt("bbbbb")));
    assert_eq!(first.messages[0], second.messages[0]);
    assert_eq!(first.messages.len(), 2, "a message of which nothing stays is left out");
}

#[test]
fn a_system_text_that_is_only_a_clock_stays() {
    let mut house = House::new(Mode::Optimise);
    let sent = [system(format!("It is {} now.", clock(house.now))), user("Late?")];
    let laid = house.lay(&sent);
    assert_eq!((laid.messages.to_vec(), laid.cause), (sent.to_vec(), Cause::Untouched));
}

#[test]
fn what_the_client_marked_for_its_own_cache_stays() {
    let mut house = House::new(Mode::Optimise);
    let text = home(house.now, "kitchen", "on");
    let lay = |house: &mut House, fixed_bytes| {
        let messages = [text.clone(), user("Late?")];
        let input = Input {
            owner: house.owner,
            model: "qwen",
            conversation: None,
            messages: &messages,
            house: &[],
            fixed_bytes,
            tools: &[],
            mode: Mode::Optimise,
            fit: Fit::Free,
            now: house.now,
            zone: ZONE,
            n_context_tokens: 4096,
            count_tokens: &|text| text.len(),
            is_clock: &is_clock,
            clock_sentences: &clock_sentences,
        };
        house.live.lay(&input).live.len()
    };
    let begin = text.content.find("It is ").unwrap();
    assert_eq!(lay(&mut house, 0..begin), 1);
    assert_eq!(lay(&mut house, 0..begin + 1), 0, "a block is not cut apart");
    assert_eq!(lay(&mut house, begin + 1..text.content.len()), 1, "what stands before the mark's own begin moves");
}

#[test]
fn a_block_between_results_of_parallel_calls_stays_where_it_was_put() {
    let mut house = taught(Mode::Optimise);
    let now = house.now;
    let chat = [user("Lights"), call("light", "{}"), tool("first"), tool("second")];
    let lay = |house: &mut House, n: usize, lamp: &str| {
        house.lay(&[home(now, "kitchen", lamp)].into_iter().chain(chat[..n].iter().cloned()).collect::<Vec<_>>())
    };
    lay(&mut house, 1, "off");
    let both = lay(&mut house, 4, "on");
    assert_eq!((block(&both, 3).as_str(), both.live.len()), ("", 2));
    assert!(block(&both, 4).contains("lamp: on"));
}

#[test]
fn an_equal_request_is_told_a_new_time_when_it_is_no_retry_any_more() {
    let mut house = House::new(Mode::Optimise);
    let prompt = |room: &str| {
        let rules = "You are the voice of this house and answer briefly.\nNever guess what a state may be.";
        [system(format!("{rules}\nYou are in the {room}.")), user(format!("Where am I? {}", room.len()))]
    };
    for room in ["kitchen", "hall", "bedroom"] {
        house.lay(&prompt(room));
    }
    let first = house.lay(&prompt("bedroom"));
    assert!(block(&first, 1).starts_with("[As of Monday 2026-11-30 19:27 CET:]"));
    house.now += RETRY_S - 1;
    assert_eq!(house.lay(&prompt("bedroom")).messages, first.messages);
    house.now += 1;
    assert!(block(&house.lay(&prompt("bedroom")), 1).starts_with("[As of Monday 2026-11-30 19:37 CET:]"));
}

#[test]
fn a_retry_whose_past_is_lost_is_told_all_again() {
    let mut house = taught(Mode::Optimise);
    let chat = [home(house.now, "kitchen", "on"), user("a"), assistant("b"), user("c")];
    let first = house.lay(&chat[..2]);
    assert!(house.lay(&chat).live.iter().all(|block| block.message_idx == 1));
    house.live.records.remove(first.record.unwrap());
    assert!(block(&house.lay(&chat), 3).contains("kitchen"));
}

#[test]
fn what_stays_of_each_system_message_ends_as_the_message_did() {
    let mut house = House::new(Mode::Safe);
    let (first, second) = (format!("Be kind.\nIt is {} now.\n", clock(house.now)), "Be brief.\n\n");
    let laid = house.lay(&[system(first), system(second), user("Late?")]);
    let texts: Vec<&str> = laid.messages.iter().map(|message| message.content.as_str()).take(2).collect();
    assert_eq!(texts, ["Be kind.\n", second]);
}
