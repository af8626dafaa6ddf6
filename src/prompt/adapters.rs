//! Which adapters a request is computed under: those that it names, else its profile's, else those in force by default.

use super::PromptError;
use crate::request::{AdapterSet, AdapterWish, Scale, WhichAdapter};

/// An adapter that was loaded with the model. Its number is its place among all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownAdapter {
    pub name: String,
    /// Where a request names it without one.
    pub scale: Scale,
    /// It counts where neither request nor profile says what does.
    pub is_default: bool,
}

/// All of them, at most `N_ADAPTERS_MAX`.
#[derive(Clone, Debug, Default)]
pub(super) struct Adapters(pub(super) Vec<KnownAdapter>);

impl Adapters {
    /// What counts where nothing is said.
    pub(super) fn default_set(&self) -> AdapterSet {
        let default = self.0.iter().enumerate().filter(|(_, adapter)| adapter.is_default);
        default.fold(AdapterSet::NONE, |set, (index, adapter)| set.with(index, adapter.scale))
    }

    /// What `wishes` name, and nothing else. An error says which of them cannot be had.
    pub(super) fn set(&self, wishes: &[AdapterWish]) -> Result<AdapterSet, PromptError> {
        let (mut set, mut named) = (AdapterSet::NONE, Vec::new());
        for (place, wish) in wishes.iter().enumerate() {
            let refused = |reason: String| PromptError::Wanted { place: format!("lora[{place}]"), reason };
            let found = match &wish.which {
                WhichAdapter::Number(number) => usize::try_from(*number).ok().filter(|&index| index < self.0.len()),
                WhichAdapter::Named(name) => self.0.iter().position(|adapter| adapter.name == *name),
            };
            let index = found.ok_or_else(|| refused(format!("{} is not here; {}", told(&wish.which), self.known())))?;
            if named.contains(&index) {
                return Err(refused(format!("names the adapter {} again", self.0[index].name)));
            }
            named.push(index);
            set = set.with(index, wish.scale.unwrap_or(self.0[index].scale));
        }
        Ok(set)
    }

    fn known(&self) -> String {
        let numbered = self.0.iter().enumerate().map(|(index, adapter)| format!("{index} ({})", adapter.name));
        match numbered.collect::<Vec<_>>() {
            names if names.is_empty() => "no adapter is configured".to_owned(),
            names => format!("there are: {}", names.join(", ")),
        }
    }
}

fn told(which: &WhichAdapter) -> String {
    match which {
        WhichAdapter::Number(number) => format!("an adapter {number}"),
        WhichAdapter::Named(name) => format!("an adapter {name:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adapters() -> Adapters {
        let known = |name: &str, scale, is_default| KnownAdapter {
            name: name.to_owned(),
            scale: Scale::new(scale).unwrap(),
            is_default,
        };
        Adapters(vec![known("butler", 1.0, false), known("pirate", 0.5, true)])
    }

    fn wish(which: WhichAdapter, scale: Option<f32>) -> AdapterWish {
        AdapterWish { which, scale: scale.map(|scale| Scale::new(scale).unwrap()) }
    }

    #[test]
    fn what_is_named_counts_and_nothing_else() {
        use WhichAdapter::{Named, Number};
        let adapters = adapters();
        let half = Scale::new(0.5).unwrap();
        assert_eq!(adapters.default_set(), AdapterSet::NONE.with(1, half));
        let set = |wishes: &[AdapterWish]| adapters.set(wishes).unwrap();
        assert_eq!(set(&[]), AdapterSet::NONE);
        assert_eq!(set(&[wish(Number(0), None)]), AdapterSet::NONE.with(0, Scale::ONE));
        let both = [wish(Named("pirate".into()), None), wish(Number(0), Some(2.0))];
        assert_eq!(set(&both), AdapterSet::NONE.with(0, Scale::new(2.0).unwrap()).with(1, half));
        assert!(set(&[wish(Number(1), Some(0.0))]).is_none());
    }

    #[test]
    fn what_is_not_here_or_named_twice_is_refused_with_its_place() {
        use WhichAdapter::{Named, Number};
        let refused = |wishes: &[AdapterWish]| adapters().set(wishes).unwrap_err().to_string();
        let known = "there are: 0 (butler), 1 (pirate)";
        assert_eq!(refused(&[wish(Number(2), None)]), format!("lora[0]: an adapter 2 is not here; {known}"));
        assert_eq!(
            refused(&[wish(Number(u64::MAX), None)]),
            format!("lora[0]: an adapter {} is not here; {known}", u64::MAX)
        );
        let unknown = [wish(Number(0), None), wish(Named("cook".into()), None)];
        assert_eq!(refused(&unknown), format!("lora[1]: an adapter \"cook\" is not here; {known}"));
        let twice = [wish(Number(0), None), wish(Named("butler".into()), Some(0.0))];
        assert_eq!(refused(&twice), "lora[1]: names the adapter butler again");
        let nowhere = Adapters::default().set(&[wish(Number(0), None)]).unwrap_err().to_string();
        assert_eq!(nowhere, "lora[0]: an adapter 0 is not here; no adapter is configured");
    }
}
