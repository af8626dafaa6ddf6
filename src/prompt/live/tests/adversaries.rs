//! System texts that nobody would write and somebody sends, changed at random from request to request.
//!
//! `a_reader_knows_each_value` reads the laid prompt as one would who knows nothing of slots: line by line, each value under
//! the heading that stands over it, later ones in the place of earlier ones.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const RULE: &str = "This is a rule of the house that stands here for long, whatever else may change around it.";

/// One change of a text that is a list of pieces.
#[derive(Clone, Debug)]
enum Change {
    Put {
        at: usize,
        piece: usize,
    },
    Drop {
        at: usize,
    },
    Swap {
        left: usize,
        right: usize,
    },
    Double {
        at: usize,
    },
    /// Numbers count down, as timers do.
    Tick,
    Wait {
        seconds: i64,
    },
}

const PIECES: [&str; 34] = [
    "- lamp: 9",
    "- lamp: 9\n  domain: light\n\tarea: hall",
    "* milk",
    "1. first",
    "2) second",
    "| a | 9 |",
    "|---|---|",
    "a | b",
    "key: 9",
    "key = 9",
    "key=9",
    "Heading:",
    "## Heading",
    "# Other",
    "```\ncode: 9\n\n- no item\n```",
    "~~~",
    "It is 19:27:50 now.",
    "nonce 9",
    "A sentence of prose. And 9 more! Is it?",
    "a sentence that is long enough to be wrapped, and goes on in the",
    "next line, in small letters",
    "🏠 home: 9 🔥",
    "\u{200b}zero: 9",
    "\u{202e}right to left: 9",
    "مرحبا: ٩",
    "   indented: 9",
    "\ttab: 9",
    "trailing: 9   ",
    "",
    "\n",
    "\r",
    "---",
    "<state>\nlamp: 9\n</state>",
    "{\"lamp\": 9, \"door\": [1, 2]}",
];

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        4 => (0usize..40, 0..PIECES.len()).prop_map(|(at, piece)| Change::Put { at, piece }),
        2 => (0usize..40).prop_map(|at| Change::Drop { at }),
        2 => (0usize..40, 0usize..40).prop_map(|(left, right)| Change::Swap { left, right }),
        1 => (0usize..40).prop_map(|at| Change::Double { at }),
        3 => Just(Change::Tick),
        2 => prop_oneof![1i64..80, 3700i64..4000].prop_map(|seconds| Change::Wait { seconds }),
    ]
}

fn apply(pieces: &mut Vec<String>, change: &Change, tick: &mut i64, now: &mut i64) {
    let n = pieces.len().max(1);
    match *change {
        Change::Put { at, piece } => pieces.insert(at % (n + 1).min(pieces.len() + 1), PIECES[piece].to_string()),
        Change::Drop { at } if !pieces.is_empty() => drop(pieces.remove(at % n)),
        Change::Swap { left, right } if !pieces.is_empty() => pieces.swap(left % n, right % n),
        Change::Double { at } if !pieces.is_empty() => {
            let again = pieces[at % n].clone();
            pieces.insert(at % n, again);
        }
        Change::Tick => *tick -= 1,
        Change::Wait { seconds } => *now += seconds,
        _ => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn odd_texts_are_laid_true_however_they_change(
        pieces in prop::collection::vec(0..PIECES.len(), 0..14),
        rounds in prop::collection::vec(prop::collection::vec(change(), 0..3), 1..14),
        line_end in prop::sample::select(vec!["\n", "\r\n", "\n\n", " "]),
        has_rule in any::<bool>(),
        goes_on in any::<bool>(),
        mode in prop_oneof![Just(Mode::Optimise), Just(Mode::Safe)],
    ) {
        let mut pieces: Vec<String> = pieces.into_iter().map(|piece| PIECES[piece].to_string()).collect();
        if has_rule {
            pieces.push(RULE.to_string());
        }
        let mut house = House::new(mode);
        let mut tick = 90;
        let mut chat: Vec<Message> = Vec::new();
        for (round, changes) in rounds.iter().enumerate() {
            changes.iter().for_each(|change| apply(&mut pieces, change, &mut tick, &mut house.now));
            let text = pieces.join(line_end).replace('9', &tick.to_string());
            if !goes_on {
                chat.clear();
            }
            chat.push(user(format!("Question {}", round % 3)));
            let sent: Vec<Message> = [system(text)].into_iter().chain(chat.clone()).collect();
            house.lay(&sent);
            chat.push(assistant("Yes."));
        }
    }
}

/// A value is named by the headings over it and by its key.
type Name = (String, String, String);

/// All values as a reader has them at the end of `text`.
fn read(text: &str, values: &mut BTreeMap<Name, String>) {
    let (mut titles, mut title, mut heading) = (Vec::new(), String::new(), String::new());
    for line in text.lines().map(str::trim) {
        if line.starts_with('#') {
            let level = line.bytes().take_while(|&byte| byte == b'#').count();
            titles.truncate(level - 1);
            titles.resize(level - 1, "");
            titles.push(line);
            (title, heading) = (titles.join(" "), String::new());
        } else if let Some(line) = line.strip_suffix(':') {
            heading = line.to_string();
        } else if let Some((key, _)) = line.strip_prefix("no longer: ").and_then(|gone| gone.split_once(": ")) {
            values.remove(&(title.clone(), heading.clone(), key.to_string()));
        } else if let Some((key, value)) = line.split_once(": ") {
            values.insert((title.clone(), heading.clone(), key.to_string()), value.to_string());
        }
    }
}

/// A house whose rooms have the same keys.
fn rooms(values: &[[u8; 4]; 3], style: usize) -> String {
    let room = |(room, [temperature, humidity, lamp, fan]): (usize, &[u8; 4])| match style {
        0 => format!("## Room {room}\ntemperature: {temperature}\nhumidity: {humidity}\n\n"),
        1 => format!("Room {room}:\n- lamp: {lamp}\n- fan: {fan}\n- door: shut\n\n"),
        2 => format!("## Room {room}\nLights:\n- lamp: {lamp}\n- fan: {fan}\n- door: shut\n\n"),
        3 => format!("Room {room}:\ntemperature: {temperature}\nhumidity: {humidity}\n\n"),
        4 => format!(
            "# Room {room}\n## Climate\ntemperature: {temperature}\n## Lights\n- lamp: {lamp}\n- fan: {fan}\n\n"
        ),
        5 => format!("# Room {room}\n\n- lamp: {lamp}\n\nSwitches:\n\n- fan: {fan}\n"),
        // What is off is not there at all.
        _ => [("temperature", temperature), ("humidity", humidity), ("lamp", lamp), ("fan", fan)]
            .iter()
            .filter(|(_, value)| **value != 20)
            .fold(format!("## Room {room}\nkey: 1\n"), |text, (key, value)| format!("{text}{key}: {value}\n")),
    };
    format!("{RULE}\n\n{}{RULE} Indeed.", values.iter().enumerate().map(room).collect::<String>())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn a_reader_knows_each_value(
        changes in prop::collection::vec((0usize..3, 0usize..4, 0u8..3, prop_oneof![3 => 1i64..80, 1 => Just(4000i64)]), 1..20),
        style in 0usize..7,
        mode in prop_oneof![Just(Mode::Optimise), Just(Mode::Safe)],
    ) {
        let mut house = House::new(mode);
        let mut values = [[20; 4]; 3];
        let mut chat: Vec<Message> = Vec::new();
        for (round, (room, key, value, seconds)) in changes.into_iter().enumerate() {
            values[room][key] = 20 + value;
            house.now += seconds;
            if seconds == 4000 {
                chat.clear();
            }
            chat.push(user(format!("Question {round}")));
            let text = rooms(&values, style);
            let sent: Vec<Message> = [system(text.clone())].into_iter().chain(chat.clone()).collect();
            let laid = house.lay(&sent);
            let (mut told, mut known) = (BTreeMap::new(), BTreeMap::new());
            read(&text, &mut told);
            read(&leading(&laid.messages), &mut known);
            for block in &laid.live {
                read(&laid.messages[block.message_idx].content[..block.n_bytes], &mut known);
            }
            prop_assert_eq!(told, known, "{}", laid.messages.iter().map(|m| m.content.as_str()).collect::<Vec<_>>().join("\n---\n"));
            chat.push(assistant("Yes."));
        }
    }
}

#[test]
fn a_retry_of_a_text_that_made_its_family_another_is_laid_as_before() {
    let mut house = House::new(Mode::Optimise);
    let thrice = "It is 190:27:50 now.";
    let texts = [
        &["* milk", "* milk", "- lamp: 90", "next line, in small letters", thrice, thrice, RULE][..],
        &["* milk", "* milk", "- lamp: 90", "next line, in small letters", thrice, thrice, thrice, RULE],
        &["* milk", "* milk", "- lamp: 90", thrice, thrice, "a | b", "next line, in small letters", thrice, RULE],
    ];
    for (round, lines) in texts.into_iter().enumerate() {
        house.lay(&[system(lines.join("\n")), user(format!("Question {round}"))]);
    }
}
