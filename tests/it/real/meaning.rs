//! Meaning is kept: the sixty questions of `questions`, asked of a real model in each layout mode.

use std::fmt::Write as _;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use hob::config::{Gpu, GpuLayers};
use hob::engine::llama::{LoadedModel, Weights};
use hob::prompt::Moment;
use hob::request::LayoutMode;

use crate::house::{Answer, House, Setup};
use crate::models;
use crate::questions::{Class, NAME, day};

/// One question's answer may hang on a rounding.
const N_LOST_MAX: usize = 2;

/// What a mode answered.
struct Answered {
    /// Whether each question was answered right.
    right: Vec<(Class, bool)>,
    n_prompt: usize,
    n_computed: usize,
    seconds: f64,
}

impl Answered {
    fn n_right(&self, class: Option<Class>) -> usize {
        self.right.iter().filter(|(of, is_right)| *is_right && class.is_none_or(|class| *of == class)).count()
    }
}

fn answered(model: &Arc<LoadedModel>, layout: LayoutMode) -> Answered {
    let clock = Arc::new(RwLock::new(Moment::utc(0)));
    let wall = clock.clone();
    let now = move || wall.read().unwrap_or_else(PoisonError::into_inner).clone();
    let setup = Setup { model_name: NAME, context: 16_384, layout, ..Setup::default() };
    let house = House::start_at(model.clone(), setup, now);
    let begun = Instant::now();
    let mut answered = Answered { right: Vec::new(), n_prompt: 0, n_computed: 0, seconds: 0.0 };
    for question in day() {
        *clock.write().unwrap() = question.moment();
        let reply = house.ask(&question.body());
        assert_eq!(reply.head.status, 200, "{reply:?}");
        let Answer { text, usage, .. } = Answer::of(&reply);
        let Some(class) = question.class else { continue };
        let is_right = question.is_right(&text);
        let mark = if is_right { "right" } else { "wrong" };
        let n_computed = usage.n_prompt - usage.n_cached;
        eprintln!("{layout:?} {mark} {class:?} {n_computed:4} {:?} -> {text:?}", question.text);
        answered.right.push((class, is_right));
        answered.n_prompt += usage.n_prompt;
        answered.n_computed += n_computed;
    }
    answered.seconds = begun.elapsed().as_secs_f64();
    house.await_rest();
    house.close();
    answered
}

fn table(modes: &[(LayoutMode, Answered)]) -> String {
    let mut table = String::from("| right answers |");
    modes.iter().for_each(|(mode, _)| write!(table, " {mode:?} |").unwrap());
    let mut row = |name: &str, cell: &dyn Fn(&Answered) -> String| {
        write!(table, "\n| {name} |").unwrap();
        modes.iter().for_each(|(_, answered)| write!(table, " {} |", cell(answered)).unwrap());
    };
    for class in Class::ALL {
        row(&class.to_string(), &|answered| answered.n_right(Some(class)).to_string());
    }
    row("all sixty", &|answered| answered.n_right(None).to_string());
    row("computed of the prompt tokens", &|answered| {
        format!("{:.1} %", 100.0 * answered.n_computed as f64 / answered.n_prompt as f64)
    });
    row("seconds", &|answered| format!("{:.0}", answered.seconds));
    table
}

#[test]
fn soak_moving_what_changes_loses_no_more_right_answers_than_chance() {
    let Some(path) = models::qwen() else { panic!("`make soak` fetches the model that is asked") };
    let weights = Weights::On { gpu: Gpu::Off, layers: GpuLayers::All };
    let model = Arc::new(LoadedModel::load(&path, weights, None, |_| {}).unwrap());
    let modes = [LayoutMode::Off, LayoutMode::Safe, LayoutMode::Optimise];
    let modes = modes.map(|mode| (mode, answered(&model, mode)));
    eprintln!("{}", table(&modes));
    let (_, off) = &modes[0];
    assert!(off.n_right(None) >= 20, "a model that knows nothing shows nothing");
    for (mode, moved) in &modes[1..] {
        assert!(moved.n_computed * 3 < off.n_computed, "{mode:?}: nothing moved");
        assert!(moved.n_right(None) + N_LOST_MAX >= off.n_right(None), "{mode:?}: answers suffer");
    }
}
