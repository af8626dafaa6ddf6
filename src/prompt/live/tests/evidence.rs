//! What is learnt of what changes, and when it is used.

use super::*;

fn laid_system(house: &mut House, text: &str) -> String {
    house.now += 10;
    // Not the same question: an equal request is a retry.
    house.lay(&[system(text), user(format!("Hello {}", house.now))]).messages[0].content.clone()
}

fn states(n: usize, on: &[usize]) -> String {
    let state = |n: &usize| if on.contains(n) { "on" } else { "off" };
    let items: String = (0..n).map(|n| format!("- light number {n}: {}\n", state(&n))).collect();
    format!("You are the voice of this house and answer briefly.\n\nStates:\n{items}\nBe kind to all who live here.")
}

#[test]
fn one_changed_line_moves_when_it_changes_again_and_two_at_once_move_at_once() {
    let mut house = House::new(Mode::Optimise);
    let text = |rooms: &str| format!("This is a rule that stands here for long.\nThis one stands longer.\n{rooms}");
    let stable = "This is a rule that stands here for long.\nThis one stands longer.\n".trim_end();
    assert_eq!(laid_system(&mut house, &text("Room one.")), text("Room one."));
    assert_eq!(laid_system(&mut house, &text("Room two.")), text("Room two."));
    assert_eq!(laid_system(&mut house, &text("Room one.")), text("Room one."), "it is held as it is");
    assert_eq!(laid_system(&mut house, &text("Room three.")), stable);

    let mut house = House::new(Mode::Optimise);
    assert_eq!(laid_system(&mut house, &text("No room.\nNo timer.")), text("No room.\nNo timer."));
    assert_eq!(laid_system(&mut house, &text("Room one.")), stable);
}

#[test]
fn two_altered_siblings_make_the_whole_list_one_slot_with_its_heading() {
    let mut house = House::new(Mode::Safe);
    laid_system(&mut house, &states(40, &[]));
    let expected = "You are the voice of this house and answer briefly.\n\nBe kind to all who live here.";
    for on in [&[3, 17][..], &[5], &[6, 7, 8, 39, 0], &[]] {
        assert_eq!(laid_system(&mut house, &states(40, on)), expected);
    }
    // Another one is no other text.
    assert_eq!(laid_system(&mut house, &states(41, &[40])), expected);
}

#[test]
fn added_and_removed_siblings_do_not_move_the_list() {
    let mut house = House::new(Mode::Safe);
    let without = |gone: &[usize]| {
        let text = states(12, &[]);
        let kept = text.lines().filter(|line| !gone.iter().any(|n| line.contains(&format!("number {n}:"))));
        kept.collect::<Vec<_>>().join("\n")
    };
    for gone in [&[][..], &[3], &[3, 7], &[3, 9]] {
        let laid = laid_system(&mut house, &without(gone));
        assert!(laid.contains("number 1:") && laid.contains("States:"));
    }
    // 7 went and came back.
    assert!(!laid_system(&mut house, &without(&[2])).contains("number 7:"));
}

#[test]
fn another_text_is_another_family_and_other_owners_teach_nothing() {
    let mut house = House::new(Mode::Optimise);
    for on in [&[][..], &[1, 2], &[3]] {
        laid_system(&mut house, &states(10, on));
    }
    let other =
        "You are the voice of this house and answer briefly.\n\nTranslate what follows into Polish, without comment.";
    assert_eq!(laid_system(&mut house, other), other);
    assert_eq!(house.live.families.len(), 2);
    house.owner = Owner::Private([2; 32]);
    assert_eq!(laid_system(&mut house, &states(10, &[4])), states(10, &[4]));
    assert_eq!(house.live.families.len(), 3);
}

#[test]
fn a_conversation_keeps_its_layout_and_the_next_one_has_the_new() {
    let mut house = House::new(Mode::Optimise);
    let text = |room: &str| format!("This is a rule that stands here for long.\nThis one stands longer.\nRoom {room}.");
    let first = house.lay(&[system(text("one")), user("a")]);
    for room in ["two", "three", "four"] {
        laid_system(&mut house, &text(room));
    }
    let on = house.lay(&[system(text("one")), user("a"), assistant("b"), user("c")]);
    assert!(on.messages.starts_with(&first.messages));
    assert_eq!(house.lay(&[system(text("one")), user("x")]).live.len(), 1);
    // Its own text changed: nothing of it can be reused, so it takes the new layout and is told all again.
    let changed = house.lay(&[system(text("five")), user("a"), assistant("b"), user("c"), assistant("d"), user("e")]);
    assert_eq!((changed.cause, changed.live.len()), (Cause::SystemChanged, 1));
}

#[test]
fn a_client_with_other_tools_begins_in_the_layout_that_is_held_with_them() {
    let mut house = House::new(Mode::Safe);
    let text = |room: &str| format!("This is a rule that stands here for long.\nThis one stands longer.\n{room}");
    let (bare, full) = (text("").trim_end().to_string(), text("No room.\nNo timer."));
    let lamp = vec!["lamp".to_string()];
    house.tools = lamp.clone();
    assert_eq!(laid_system(&mut house, &full), full);
    house.tools = vec!["timer".into(), "lamp".into()];
    assert_eq!(laid_system(&mut house, &text("Room one.")), bare);
    assert_eq!(laid_system(&mut house, &full), bare, "with these tools nothing else is held");
    house.tools = lamp;
    assert_eq!(laid_system(&mut house, &full), full, "all of it is held");
    house.tools = vec!["timer".into()];
    assert_eq!(laid_system(&mut house, &full), bare, "the newer layout is held with these tools first");
    house.now += 3600;
    house.tools = vec!["lamp".into()];
    assert_eq!(laid_system(&mut house, &full), bare, "nothing of it is held any more");
}

#[test]
fn what_stands_still_for_thirty_days_is_text_again() {
    let mut house = House::new(Mode::Safe);
    for on in [&[][..], &[1, 2], &[3]] {
        laid_system(&mut house, &states(10, on));
    }
    let day = 24 * 3600;
    for _ in 0..29 {
        house.now += day;
        house.live.idle(house.now, house.now - 7 * day);
        assert!(!laid_system(&mut house, &states(10, &[3])).contains("number"));
    }
    house.now += 2 * day;
    house.live.idle(house.now, house.now - 7 * day);
    assert_eq!(laid_system(&mut house, &states(10, &[3])), states(10, &[3]));
    house.live.idle(house.now + 31 * day, house.now + 1);
    assert!(house.live.families.is_empty() && house.live.records.iter().next().is_none());
}

#[test]
fn a_clock_and_forty_states_leave_all_else_in_place_from_the_third_request_on() {
    let mut house = House::new(Mode::Safe);
    let mut laid = |on: &[usize]| {
        house.now += 37;
        let text = format!("It is {} now.\n{}", clock(house.now), states(40, on));
        laid_system(&mut house, &text)
    };
    laid(&[]);
    let second = laid(&[1, 9, 30]);
    assert_eq!(laid(&[2, 9]), second);
    assert_eq!(laid(&[]), second);
}

#[test]
fn off_and_observe_change_no_byte_and_observe_says_what_would_be_gained() {
    let mut gains = Vec::new();
    for mode in [Mode::Off, Mode::Observe] {
        let mut house = House::new(mode);
        for on in [&[][..], &[1, 2], &[3], &[4]] {
            house.now += 10;
            let sent = [system(states(20, on)), user("Hello")];
            let laid = house.lay(&sent);
            assert_eq!(laid.messages[..], sent);
            gains.push((laid.n_gained_bytes > 0, laid.moved.len()));
        }
        assert_eq!(house.live.families.len(), usize::from(mode == Mode::Observe));
    }
    assert_eq!(gains[..4], [(false, 0); 4]);
    assert_eq!(gains[4..], [(false, 0), (false, 1), (true, 1), (true, 1)]);
}
