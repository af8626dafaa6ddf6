//! Adapters: which of the model's LoRA adapters something is computed under, and how strongly each counts.
//!
//! An *adapter* is a file of small matrices that are added to a model's own; its number is its place in the configuration. A *set*
//! is what is in force at once: two sets that differ in one scale are two, since what one of them computed is wrong for the other.

use std::fmt;

/// Adapters that a configuration may name: a house has a few, and a set has a place for each of them, so that it can be compared
/// and copied like a number.
pub const N_ADAPTERS_MAX: usize = 8;

/// How strongly an adapter counts: 1 as it was trained, 0 not at all. Equal scales are equal bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Scale(u32);

impl Scale {
    /// Beyond it, and below its negative, an adapter drowns the model.
    pub const MAX: f32 = 10.0;
    pub const ZERO: Scale = Scale(0);
    /// As the adapter was trained.
    pub const ONE: Scale = Scale(1.0_f32.to_bits());

    /// `None`: it is no number, or too large.
    pub fn new(scale: f32) -> Option<Scale> {
        // Both zeros mean the same.
        let bits = if scale == 0.0 { 0 } else { scale.to_bits() };
        (-Self::MAX..=Self::MAX).contains(&scale).then_some(Scale(bits))
    }

    pub fn get(self) -> f32 {
        f32::from_bits(self.0)
    }
}

impl fmt::Debug for Scale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

/// The scale of each configured adapter.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct AdapterSet([Scale; N_ADAPTERS_MAX]);

impl AdapterSet {
    /// The model as it is.
    pub const NONE: AdapterSet = AdapterSet([Scale::ZERO; N_ADAPTERS_MAX]);

    /// The same, but the adapter `index` (below `N_ADAPTERS_MAX`) counts with `scale`; with 0 it takes no part.
    pub fn with(mut self, index: usize, scale: Scale) -> AdapterSet {
        self.0[index] = scale;
        self
    }

    pub fn is_none(self) -> bool {
        self == AdapterSet::NONE
    }

    /// Number and scale of each adapter that takes part, the numbers rising.
    pub fn parts(self) -> impl Iterator<Item = (usize, Scale)> {
        self.0.into_iter().enumerate().filter(|&(_, scale)| scale != Scale::ZERO)
    }
}

impl fmt::Debug for AdapterSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.parts()).finish()
    }
}

/// An adapter that a request names.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct AdapterWish {
    pub which: WhichAdapter,
    /// `None`: as configured.
    pub scale: Option<Scale>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum WhichAdapter {
    Number(u64),
    Named(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scale(scale: f32) -> Scale {
        Scale::new(scale).unwrap()
    }

    #[test]
    fn a_set_is_its_scales_whatever_order_they_were_named_in() {
        let set = AdapterSet::NONE.with(3, scale(0.5)).with(1, Scale::ONE);
        assert_eq!(set, AdapterSet::NONE.with(1, Scale::ONE).with(3, scale(0.5)));
        assert_ne!(set, AdapterSet::NONE.with(1, Scale::ONE).with(3, scale(0.25)));
        assert_eq!(set.parts().collect::<Vec<_>>(), [(1, Scale::ONE), (3, scale(0.5))]);
        assert_eq!(format!("{set:?}"), "{1: 1.0, 3: 0.5}");
    }

    #[test]
    fn a_scale_of_nothing_is_no_part() {
        let set = AdapterSet::NONE.with(0, Scale::ONE).with(0, scale(-0.0));
        assert!(set.is_none());
        assert_eq!(set.with(2, Scale::ZERO).parts().count(), 0);
    }

    #[test]
    fn only_numbers_of_some_sense_are_scales() {
        for absurd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 10.1, -1e9] {
            assert_eq!(Scale::new(absurd), None);
        }
        assert_eq!(Scale::new(-2.5).unwrap().get(), -2.5);
    }
}
