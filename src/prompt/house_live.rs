//! What a house says of itself in each question: the time, and values that its profiles name.
//!
//! A *value* is a name with the text that was last read for it, by whom is not known here. It becomes a slot of `live`,
//! which writes it in front of a question when it differs from what the conversation shows already.

use std::sync::Arc;

use super::Moment;
use super::live::HouseSlot;

/// The live values of one profile, now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HouseLive {
    /// The time stands in front of each question.
    pub has_clock: bool,
    /// Always the same ones, in the same order.
    pub values: Vec<HouseValue>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HouseValue {
    pub name: String,
    /// Trimmed; empty: it was never read.
    pub text: Arc<str>,
    /// Its source fails: when, in Unix time, it was last true.
    pub last_true: Option<i64>,
}

/// Where a profile's values come from; never waits.
pub type HouseReader = Box<dyn Fn(&str) -> HouseLive + Send>;

/// The slots of `house`. `has_date`: the template shows another day than today's.
pub(super) fn slots(house: &HouseLive, has_date: bool, now: &Moment) -> Vec<HouseSlot> {
    let clock = |name: &str, text: String| HouseSlot { name: name.to_owned(), text: text.into(), is_clock: true };
    let mut slots = Vec::with_capacity(house.values.len() + 1);
    if house.has_clock {
        slots.push(clock("clock", now.minute()));
    } else if has_date {
        slots.push(clock("date", now.date()));
    }
    slots.extend(house.values.iter().map(|value| HouseSlot {
        name: value.name.clone(),
        text: value.written(now).into(),
        is_clock: false,
    }));
    slots
}

impl HouseValue {
    /// `weather: rain, 4 °C (since 14:02)`; a text of several lines stands below its name.
    fn written(&self, now: &Moment) -> String {
        let HouseValue { name, text, last_true } = self;
        if text.is_empty() {
            return String::new();
        }
        // These characters stand for control tokens while a prompt is made: a value must not hold any.
        let text = text.replace(|letter| letter >= '\u{100000}', "\u{fffd}");
        let since = last_true.map(|at| format!(" (since {})", now.tell(at))).unwrap_or_default();
        if text.contains('\n') { format!("{name}{since}:\n{text}") } else { format!("{name}: {text}{since}") }
    }
}
