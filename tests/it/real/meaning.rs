//! Meaning is kept: the sixty questions of `questions`, asked of a real model in each layout mode.

use std::fmt::Write as _;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use hob::config::{Gpu, GpuLayers};
use hob::engine::llama::{LoadedModel, Weights};
use hob::prompt::Moment;
use hob::request::LayoutMode;

use crate::house::{Answer, House, Setup};
use crate::models;
use crate::questions::{Class, NAME, Question, day};

/// As sent comes first: the others are compared with it.
const MODES: [LayoutMode; 3] = [LayoutMode::Off, LayoutMode::Safe, LayoutMode::Optimise];
/// An answer may hang on a rounding.
const N_LOST_MAX: usize = 2;

/// A house in one layout mode, and what it has answered.
struct Asked {
    mode: LayoutMode,
    house: House,
    /// Whether each question was answered right.
    right: Vec<(Class, bool)>,
    n_prompt: usize,
    n_computed: usize,
    spent: Duration,
}

impl Asked {
    fn start(model: &Arc<LoadedModel>, mode: LayoutMode, clock: &Arc<RwLock<Moment>>) -> Asked {
        let wall = clock.clone();
        let now = move || wall.read().unwrap_or_else(PoisonError::into_inner).clone();
        let setup = Setup { model_name: NAME, context: 16_384, parallel: 1, layout: mode, ..Setup::default() };
        let house = House::start_at(model.clone(), setup, now);
        Asked { mode, house, right: Vec::new(), n_prompt: 0, n_computed: 0, spent: Duration::ZERO }
    }

    fn ask(&mut self, question: &Question) {
        // What was before is for those who learn from it.
        if question.class.is_none() && self.mode == LayoutMode::Off {
            return;
        }
        let begun = Instant::now();
        let reply = self.house.ask(&question.body());
        assert_eq!(reply.head.status, 200, "{reply:?}");
        let Answer { text, usage, .. } = Answer::of(&reply);
        let Some(class) = question.class else { return };
        let is_right = question.is_right(&text);
        let n_computed = usage.n_prompt - usage.n_cached;
        let mark = if is_right { "right" } else { "wrong" };
        eprintln!("{:?} {mark} {class:?} {:?} -> {text:?} ({n_computed} computed)", self.mode, question.text);
        self.right.push((class, is_right));
        self.n_prompt += usage.n_prompt;
        self.n_computed += n_computed;
        self.spent += begun.elapsed();
    }

    fn n_right(&self, class: Option<Class>) -> usize {
        self.right.iter().filter(|(of, is_right)| *is_right && class.is_none_or(|class| *of == class)).count()
    }
}

/// As the README shows it.
fn table(modes: &[Asked]) -> String {
    let mut table = String::from("| right answers, of ten each |");
    modes.iter().for_each(|asked| write!(table, " `{}` |", format!("{:?}", asked.mode).to_lowercase()).unwrap());
    let mut row = |name: &str, cell: &dyn Fn(&Asked) -> String| {
        write!(table, "\n| {name} |").unwrap();
        modes.iter().for_each(|asked| write!(table, " {} |", cell(asked)).unwrap());
    };
    row("---", &|_| "---".to_owned());
    for class in Class::ALL {
        row(&class.to_string(), &|asked| asked.n_right(Some(class)).to_string());
    }
    row("**all sixty**", &|asked| format!("**{}**", asked.n_right(None)));
    row("prompt tokens computed", &|asked| format!("{:.1} %", 100.0 * asked.n_computed as f64 / asked.n_prompt as f64));
    row("seconds for all", &|asked| format!("{:.0}", asked.spent.as_secs_f64()));
    table
}

/// Each question is asked in each mode before the next one: what one mode lost can be read beside the others.
#[test]
fn soak_moving_what_changes_loses_no_more_right_answers_than_chance() {
    let path = models::qwen().expect("`make soak` fetches the model that is asked");
    let weights = Weights::On { gpu: Gpu::Off, layers: GpuLayers::All };
    let model = Arc::new(LoadedModel::load(&path, weights, None, |_| {}).unwrap());
    let clock = Arc::new(RwLock::new(Moment::utc(0)));
    let mut modes = MODES.map(|mode| Asked::start(&model, mode, &clock));
    for question in day() {
        *clock.write().unwrap() = question.moment();
        modes.iter_mut().for_each(|asked| asked.ask(&question));
    }
    eprintln!("{}", table(&modes));
    let [off, moved @ ..] = &modes;
    // A model that knows nothing shows nothing.
    assert!(off.n_right(None) >= 20);
    for asked in moved {
        assert!(asked.n_computed * 3 < off.n_computed, "{:?}: nothing moved", asked.mode);
        assert!(asked.n_right(None) + N_LOST_MAX >= off.n_right(None), "{:?}: answers suffer", asked.mode);
    }
    for asked in modes {
        asked.house.await_rest();
        asked.house.close();
    }
}
