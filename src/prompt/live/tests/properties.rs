//! What holds for any sequence of requests, changes and losses.

use proptest::prelude::*;

use super::*;

/// What can happen in a house.
#[derive(Clone, Debug)]
enum Event {
    /// The client sends its conversation: a new question, or a tool's result.
    Ask {
        chat: usize,
        text: usize,
    },
    Result {
        chat: usize,
    },
    /// The last question again, after an answer or not.
    Again {
        chat: usize,
    },
    /// An earlier question is asked anew.
    Edit {
        chat: usize,
        turn: usize,
    },
    Trim {
        chat: usize,
        n: usize,
    },
    New {
        chat: usize,
    },
    /// Something in the house or in a client's room changes.
    State {
        slot: usize,
        value: usize,
    },
    Room {
        chat: usize,
        value: usize,
    },
    /// A rule of the system text is rewritten.
    Rule {
        rule: usize,
    },
    Wait {
        seconds: i64,
    },
    Restart,
    Lose,
    LoseSome {
        nth: usize,
    },
    Idle,
    Mode {
        mode: Mode,
    },
}

const N_CHATS: usize = 3;

fn event() -> impl Strategy<Value = Event> {
    let chat = 0..N_CHATS;
    prop_oneof![
        6 => (chat.clone(), 0usize..3).prop_map(|(chat, text)| Event::Ask { chat, text }),
        4 => chat.clone().prop_map(|chat| Event::Result { chat }),
        2 => chat.clone().prop_map(|chat| Event::Again { chat }),
        1 => (chat.clone(), 0usize..4).prop_map(|(chat, turn)| Event::Edit { chat, turn }),
        1 => (chat.clone(), 1usize..5).prop_map(|(chat, n)| Event::Trim { chat, n }),
        1 => chat.clone().prop_map(|chat| Event::New { chat }),
        4 => (0usize..6, 0usize..4).prop_map(|(slot, value)| Event::State { slot, value }),
        2 => (chat, 0usize..4).prop_map(|(chat, value)| Event::Room { chat, value }),
        1 => (0usize..5).prop_map(|rule| Event::Rule { rule }),
        4 => prop_oneof![1i64..100, 500i64..4000, Just(40 * 24 * 3600)].prop_map(|seconds| Event::Wait { seconds }),
        1 => Just(Event::Restart),
        1 => Just(Event::Lose),
        1 => (1usize..4).prop_map(|nth| Event::LoseSome { nth }),
        1 => Just(Event::Idle),
        1 => prop_oneof![Just(Mode::Safe), Just(Mode::Optimise)].prop_map(|mode| Event::Mode { mode }),
    ]
}

#[derive(Default)]
struct Text {
    states: [usize; 6],
    rules: [usize; 5],
}

impl Text {
    /// A text in which each part can be there or not: a clock between rules, one line, a list, a room at the end.
    fn write(&self, room: usize, now: i64) -> String {
        let [lead, line, item, other_item, last_item, prose] = self.states;
        let rule =
            |rule: usize| format!("Rule {rule}.{} is that all of us are kind to whoever asks.", self.rules[rule]);
        let some = |value: usize, text: String| if value == 0 { String::new() } else { text };
        let heating = format!("heating: {line}\n");
        [
            some(lead, format!("Today we are {lead}.\n")),
            rule(0),
            format!("\nIt is {} here.", clock(now)),
            format!(" Be {}.\n", ["kind", "good", "calm", "kind"][lead]),
            rule(1),
            "\n\nThings:\n- heater: warm\n".to_string(),
            some(item, format!("- lamp: {item}\n  place: hall\n")),
            "- door: shut\n".to_string(),
            some(other_item, format!("- fan: {other_item}\n")),
            "- gate: open\n".to_string(),
            some(last_item, format!("- oven: {last_item}\n")),
            format!("\n{}\n", rule(2)),
            some(line, heating),
            some(prose, format!("Guest {prose} sleeps here.\n")),
            rule(3),
            "\n".to_string(),
            rule(4),
            some(room, format!("\nYou are in room {room}.")),
        ]
        .concat()
    }
}

struct Chat {
    turns: Vec<Message>,
    room: usize,
    name: String,
    /// As it was laid last, if nothing has happened since that takes its records.
    last: Vec<Message>,
    record: Option<RecordId>,
    /// The system text at midnight.
    text: String,
}

impl Chat {
    /// The model says `answer`, if it was asked.
    fn answer(&mut self, answer: Message, live: &mut Live, is_told: bool) {
        if self.turns.last().is_some_and(|turn| turn.role != Role::Assistant) {
            if let Some(record) = self.record.filter(|_| is_told) {
                live.answered(record, &answer);
            }
            self.turns.push(answer);
        }
    }
}

fn live_through(events: &[Event], mode: Mode, has_names: bool, n_context_tokens: usize) {
    let mut house = House::new(mode);
    house.n_context_tokens = n_context_tokens;
    let mut text = Text::default();
    let mut n_names = 0;
    let mut new_chat = |room| {
        n_names += 1;
        Chat {
            turns: Vec::new(),
            room,
            name: format!("chat {n_names}"),
            last: Vec::new(),
            record: None,
            text: String::new(),
        }
    };
    let mut chats: Vec<Chat> = (0..N_CHATS).map(&mut new_chat).collect();
    for event in events {
        let mut sender = None;
        match *event {
            Event::Ask { chat, text } => {
                // Without names, every third answer is never told.
                let is_told = has_names || (house.now + chat as i64) % 3 > 0;
                chats[chat].answer(assistant("Yes"), &mut house.live, is_told);
                chats[chat].turns.push(user(["Light", "Heat", " Light\n"][text]));
                sender = Some(chat);
            }
            Event::Result { chat } if !chats[chat].turns.is_empty() => {
                chats[chat].answer(call("do", r#"{"a": 1}"#), &mut house.live, true);
                chats[chat].turns.push(tool("done"));
                sender = Some(chat);
            }
            Event::Again { chat } if !chats[chat].turns.is_empty() => sender = Some(chat),
            Event::Edit { chat, turn } => {
                let turns = &mut chats[chat].turns;
                if let Some((at, _)) = turns.iter().enumerate().filter(|(_, turn)| turn.role == Role::User).nth(turn) {
                    turns.truncate(at);
                    turns.push(user("No, heat"));
                    chats[chat].last.clear();
                    sender = Some(chat);
                }
            }
            Event::Trim { chat, n } => {
                let n = n.min(chats[chat].turns.len());
                chats[chat].turns.drain(..n);
                chats[chat].last.clear();
            }
            Event::New { chat } => chats[chat] = new_chat(chat),
            Event::State { slot, value } => text.states[slot] = value,
            Event::Room { chat, value } => chats[chat].room = value,
            Event::Rule { rule } => text.rules[rule] += 1,
            Event::Wait { seconds } => house.now += seconds,
            Event::Restart => {
                let folder = tempfile::tempdir().unwrap();
                let path = folder.path().join("live");
                crate::prompt::store::save(&path, &house.live).unwrap();
                house.live = crate::prompt::store::load(&path).unwrap();
            }
            Event::Lose => {
                house.live = Live::default();
                chats.iter_mut().for_each(|chat| chat.last.clear());
            }
            Event::LoseSome { nth } => {
                let lost: Vec<RecordId> = house.live.records.iter().map(|(id, _)| id).step_by(nth).collect();
                lost.into_iter().for_each(|id| house.live.records.remove(id));
                house.records_were_lost = true;
                chats.iter_mut().for_each(|chat| chat.last.clear());
            }
            Event::Idle => {
                house.live.idle(house.now, house.now - 7 * 24 * 3600);
                house.records_were_lost = true;
                chats.iter_mut().for_each(|chat| chat.last.clear());
            }
            Event::Mode { mode } if house.mode != Mode::Observe => {
                house.mode = mode;
                chats.iter_mut().for_each(|chat| chat.last.clear());
            }
            _ => {}
        }
        let Some(sender) = sender else { continue };
        let chat = &mut chats[sender];
        house.conversation = has_names.then(|| chat.name.clone());
        let sent: Vec<Message> =
            [system(text.write(chat.room, house.now))].into_iter().chain(chat.turns.clone()).collect();
        let laid = house.lay(&sent);
        if mode == Mode::Observe {
            assert_eq!(laid.messages[..], sent);
        }
        // Append-only: a conversation with a name of its own that nothing was done to goes on where it was, unless what
        // stays of its system text is another in the layout that it had. Then another's past may be a better one.
        let records = &house.live.records;
        let parent = laid.record.and_then(|id| records.get(records.get(id)?.parent?));
        let is_own = parent.is_some_and(|parent| parent.conversation == Some(Digest::of(chat.name.as_bytes())));
        let goes_on = chat.last.first() == laid.messages.first() && sent.len() > chat.last.len();
        // In a tool loop a state that changed may call for an older rendering of the same question.
        let written = text.write(chat.room, 0);
        let is_same = chat.text == written || chat.turns.last().is_some_and(|turn| turn.role == Role::User);
        chat.text = written;
        let is_anew = matches!(laid.cause, Cause::Compacted | Cause::SystemChanged | Cause::Untouched);
        if has_names && goes_on && is_own && is_same && !is_anew {
            let shown = |messages: &[Message]| {
                messages.iter().map(|m| format!("{:?} {:?}\n", m.role, m.content)).collect::<String>()
            };
            assert!(
                laid.messages.starts_with(&chat.last),
                "{:?}\n{}\n{}",
                laid.cause,
                shown(&chat.last),
                shown(&laid.messages)
            );
        }
        chat.last = laid.messages.to_vec();
        chat.record = laid.record;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_no_request_is_told_what_is_not_so(
        events in proptest::collection::vec(event(), 1..60),
        mode in prop_oneof![2 => Just(Mode::Optimise), 2 => Just(Mode::Safe), 1 => Just(Mode::Observe)],
        has_names in any::<bool>(),
        n_context_tokens in prop_oneof![Just(1 << 20), Just(800)],
    ) {
        live_through(&events, mode, has_names, n_context_tokens);
    }

    #[test]
    fn off_changes_no_byte(text in ".{0,200}", question in ".{0,50}") {
        let mut house = House::new(Mode::Off);
        let sent = [system(text), user(question)];
        let laid = house.lay(&sent);
        prop_assert_eq!(&laid.messages[..], &sent[..]);
    }

    #[test]
    fn any_texts_are_laid_true(texts in proptest::collection::vec("([-:.#\n ]|\n\n|- a|b:|It is 19:27:50 now|[c-f]{1,3}){0,12}", 1..8), mode in prop_oneof![Just(Mode::Optimise), Just(Mode::Safe)]) {
        let mut house = House::new(mode);
        let mut chat = Vec::new();
        for text in texts {
            house.now += 3;
            chat.push(user("Well?"));
            let rule = "A rule that stands in front of all that changes here, whatever it is.";
            let text = format!("{rule}\n{text}\n{rule}");
            let sent: Vec<Message> = [system(text)].into_iter().chain(chat.clone()).collect();
            house.lay(&sent);
            chat.push(assistant("Yes."));
        }
    }
}
