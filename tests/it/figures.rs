//! What laying out saves of real days and of a clock in front, in exact token counts.
//!
//! A *day* is a recording's chat requests in their order, planned under a real model's vocabulary and template at moments
//! that the test chooses. Everything computed is kept, so that a token is computed when no earlier prompt began with it and
//! all before it; `home_assistant` shows that the daemon computes exactly as many.

use std::path::Path;
use std::sync::Arc;

use hob::engine::llama::{LoadedModel, Weights};
use hob::engine::{ChatTemplate, Model, Vocab};
use hob::http::parse_chat;
use hob::prompt::{Layout, Moment, Planner};
use hob::request::{LayoutMode, Request, Token};
use serde_json::Value;

use crate::home_assistant::{NAME, Recording, labelled_bodies};
use crate::models;

/// 2026-11-30 18:27:50 UTC, when the recording was made.
const START: i64 = 1_796_063_270;

/// All that was ever computed.
#[derive(Default)]
struct Held(Vec<Vec<Token>>);

impl Held {
    /// Tokens of `prompt` that must be computed; the last one always is.
    fn compute(&mut self, prompt: &[Token]) -> usize {
        let n_common = |held: &Vec<Token>| held.iter().zip(prompt).take_while(|(held, wanted)| held == wanted).count();
        let n_held = self.0.iter().map(n_common).max().unwrap_or(0).min(prompt.len() - 1);
        self.0.push(prompt.to_vec());
        prompt.len() - n_held
    }
}

/// A household's tokeniser and template, without weights.
struct Words {
    vocab: Arc<dyn Vocab>,
    template: Arc<dyn ChatTemplate>,
}

impl Words {
    fn of(path: &Path) -> Words {
        let model = LoadedModel::load(path, Weights::None, None, |_| {}).unwrap();
        Words { vocab: model.vocab(), template: model.template() }
    }

    fn planner(&self, mode: LayoutMode, file: Option<&Path>) -> Planner {
        let planner = Planner::new(self.vocab.clone(), self.template.clone(), NAME.into(), Vec::new()).unwrap();
        planner.with_layout(Layout { mode, n_context_tokens: usize::MAX, file: file.map(Path::to_owned) })
    }

    fn text(&self, tokens: &[Token]) -> String {
        let mut bytes = Vec::new();
        tokens.iter().for_each(|&token| self.vocab.piece(token, &mut bytes));
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// The requests of a day and the letters of their conversations.
fn day(recording: Recording) -> Vec<(Request, String)> {
    let read = |(body, label): (Value, String)| {
        let (_, conversation) = label.split_once("conv=").unwrap();
        (parse_chat(body.to_string().as_bytes(), "hall").unwrap(), conversation[..1].to_owned())
    };
    labelled_bodies(recording).into_iter().map(read).collect()
}

/// Plans a day that begins at `start`, a request every 20 s. Returns the tokens of all prompts and those computed.
/// `names`: what the client calls the day's conversations; Home Assistant calls them nothing.
fn live_through(
    planner: &mut Planner,
    held: &mut Held,
    day: &[(Request, String)],
    start: i64,
    names: Option<&str>,
) -> Vec<(usize, usize)> {
    let requests = day.iter().zip((start..).step_by(20));
    let counts = requests.map(|((request, letter), now)| {
        let conversation = names.map(|names| format!("{names} {letter}"));
        let request = Request { conversation, ..request.clone() };
        let planned = planner.plan(&request, &Moment::utc(now)).unwrap();
        (planned.prompt.tokens.len(), held.compute(&planned.prompt.tokens))
    });
    counts.collect()
}

fn sum(counts: &[(usize, usize)]) -> (usize, usize) {
    counts.iter().fold((0, 0), |sum, count| (sum.0 + count.0, sum.1 + count.1))
}

/// Tokens of all prompts of a day and those computed.
#[derive(Debug, PartialEq, Eq)]
struct Days {
    from_nothing: (usize, usize),
    /// After a restart that kept what was learnt of the first day, and nothing computed; other conversations.
    with_evidence: (usize, usize),
    /// Half an hour later, the client showing the histories of the first time.
    with_both: (usize, usize),
    /// The same as other conversations that happen to have the same words.
    with_both_anew: (usize, usize),
}

fn days(words: &Words, recording: Recording, mode: LayoutMode) -> Days {
    let day = day(recording);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("layout");
    let later = START + 1800;
    let first_day = |names| {
        let mut planner = words.planner(mode, Some(&file));
        let mut held = Held::default();
        let counts = live_through(&mut planner, &mut held, &day, START, names);
        (planner, held, sum(&counts))
    };
    let (mut planner, mut held, from_nothing) = first_day(None);
    let with_both = sum(&live_through(&mut planner, &mut held, &day, later, None));
    let (mut planner, mut held, named) = first_day(Some("first"));
    assert_eq!(named, from_nothing, "names are no tokens");
    planner.rest(&Moment::utc(START + 1000));
    let mut restarted = words.planner(mode, Some(&file));
    let with_evidence = sum(&live_through(&mut restarted, &mut Held::default(), &day, later, Some("second")));
    let with_both_anew = sum(&live_through(&mut planner, &mut held, &day, later, Some("second")));
    let days = Days { from_nothing, with_evidence, with_both, with_both_anew };
    let percent = |(n_prompt, n_computed)| format!("{:.2} %", 100.0 * n_computed as f64 / n_prompt as f64);
    eprintln!(
        "{recording:?}, {mode:?}: from nothing {}, with evidence {}, with both {}, anew {}: {days:?}",
        percent(days.from_nothing),
        percent(days.with_evidence),
        percent(days.with_both),
        percent(days.with_both_anew)
    );
    days
}

/// The README's table.
#[test]
fn a_day_computes_so_many_tokens_from_nothing_with_evidence_and_with_both() {
    let words = Words::of(&models::smollm2());
    let check = |recording, mode, expected: [(usize, usize); 4]| {
        let [from_nothing, with_evidence, with_both, with_both_anew] = expected;
        assert_eq!(days(&words, recording, mode), Days { from_nothing, with_evidence, with_both, with_both_anew });
    };
    let off = |n_prompt, n_computed| [(n_prompt, n_computed), (n_prompt, n_computed), (n_prompt, 34), (n_prompt, 34)];
    check(Recording::LlamaCpp, LayoutMode::Off, off(211_130, 28_645));
    check(Recording::Ollama, LayoutMode::Off, off(196_806, 26_841));
    let laid = [(211_480, 24_219), (212_524, 18_773), (211_480, 231), (211_480, 7_467)];
    check(Recording::LlamaCpp, LayoutMode::Safe, laid);
    let laid = [(211_680, 24_423), (212_524, 16_640), (211_705, 431), (211_980, 10_823)];
    check(Recording::LlamaCpp, LayoutMode::Optimise, laid);
    let laid = [(197_156, 22_967), (198_200, 18_016), (197_156, 231), (197_156, 7_467)];
    check(Recording::Ollama, LayoutMode::Safe, laid);
    let laid = [(197_356, 23_171), (198_200, 16_088), (197_381, 431), (197_656, 10_823)];
    check(Recording::Ollama, LayoutMode::Optimise, laid);
}

/// Qwen's template has a place for tools, and its vocabulary longer words.
#[test]
fn models_with_tools_in_the_template_keep_within_the_goals() {
    let Some(qwen) = models::qwen() else { return };
    let words = Words::of(&qwen);
    for recording in [Recording::LlamaCpp, Recording::Ollama] {
        for (mode, goals) in [(LayoutMode::Safe, [125, 95, 15]), (LayoutMode::Optimise, [115, 95, 15])] {
            let days = days(&words, recording, mode);
            let counts = [days.from_nothing, days.with_evidence, days.with_both];
            for ((n_prompt, n_computed), per_mille_max) in counts.into_iter().zip(goals) {
                assert!(1000 * n_computed <= per_mille_max * n_prompt, "{mode:?}: {per_mille_max} per mille");
            }
        }
    }
}

/// The first question from the bedroom's satellite, after the kitchen's.
const FROM_ANOTHER_SATELLITE: usize = 18;

#[test]
fn from_one_satellite_to_another_only_the_room_and_the_question_are_computed() {
    let words = Words::of(&models::smollm2());
    for recording in [Recording::LlamaCpp, Recording::Ollama] {
        let day = day(recording);
        let n_computed = |mode| {
            let counts = live_through(&mut words.planner(mode, None), &mut Held::default(), &day, START, None);
            counts[FROM_ANOTHER_SATELLITE].1
        };
        let as_sent = if recording == Recording::LlamaCpp { 4549 } else { 3997 };
        assert_eq!([LayoutMode::Off, LayoutMode::Safe, LayoutMode::Optimise].map(n_computed), [as_sent, 41, 41]);
    }
}

/// A prompt that begins with the time to the second and 40 states, of which three have changed since the last question.
fn clocked(recorded: &Request, n: usize, now: i64) -> Request {
    let of_day = now.rem_euclid(24 * 3600);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    let state = |light: usize| if (light * 7 + n * 3) % 40 < 3 { "on" } else { "off" };
    let states: String = (0..40).map(|light| format!("- light.number_{light}: {}\n", state(light))).collect();
    let mut request = recorded.clone();
    let rules = &recorded.messages[0].content;
    request.messages[0].content =
        format!("Current time is {hour:02}:{minute:02}:{second:02}.\n\nStates:\n{states}\n{rules}");
    request.messages[1].content = format!("Question number {n}?");
    request
}

#[test]
fn a_clock_and_forty_states_in_front_cost_themselves_and_the_question_from_the_third_request_on() {
    let words = Words::of(&models::smollm2());
    let recorded = &day(Recording::LlamaCpp)[0].0;
    for (mode, expected) in [
        (LayoutMode::Off, [5147, 5136, 5134, 5137, 5134, 5136, 5136, 5134]),
        (LayoutMode::Safe, [5171, 5167, 409, 424, 409, 423, 423, 409]),
        (LayoutMode::Optimise, [5171, 5167, 409, 424, 409, 423, 423, 409]),
    ] {
        let (mut planner, mut held) = (words.planner(mode, None), Held::default());
        let computed = std::array::from_fn(|at| {
            let n = at + 1;
            let now = START + 37 * n as i64;
            let planned = planner.plan(&clocked(recorded, n, now), &Moment::utc(now)).unwrap();
            let tokens = &planned.prompt.tokens;
            let n_computed = held.compute(tokens);
            let (reused, computed) = tokens.split_at(tokens.len() - n_computed);
            if mode != LayoutMode::Off && n >= 3 {
                assert!(words.text(reused).contains("user\n[As of "), "only the block and the question are computed");
                let computed = words.text(computed);
                assert!(computed.contains("light.number_39") && computed.contains(&format!("Question number {n}?")));
            }
            n_computed
        });
        assert_eq!(computed, expected, "{mode:?}");
    }
}
