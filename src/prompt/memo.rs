//! A memo: values by key, bounded by weight, that forgets what was not used for long.
//!
//! Two generations stand for an order of use: what is used is in the young one; when that holds half of the weight it
//! becomes the old one, and the old one is forgotten. Cheaper than a linked list, and never over the bound.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;

pub(super) struct Memo<K, V> {
    young: HashMap<K, Weighed<V>>,
    old: HashMap<K, Weighed<V>>,
    young_weight: usize,
    /// Of both generations together, in the caller's unit.
    weight_max: usize,
}

struct Weighed<V> {
    value: V,
    weight: usize,
}

impl<K: Hash + Eq, V> Memo<K, V> {
    pub(super) fn new(weight_max: usize) -> Memo<K, V> {
        Memo { young: HashMap::new(), old: HashMap::new(), young_weight: 0, weight_max }
    }

    /// The value of `key`, which counts as used now.
    pub(super) fn get<Q>(&mut self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        if !self.young.contains_key(key) {
            let (key, weighed) = self.old.remove_entry(key)?;
            self.put(key, weighed);
        }
        self.young.get(key).map(|weighed| &weighed.value)
    }

    /// Keeps `value`, unless it alone weighs more than a generation may.
    pub(super) fn insert(&mut self, key: K, value: V, weight: usize) {
        if weight <= self.weight_max / 2 {
            self.put(key, Weighed { value, weight });
        }
    }

    pub(super) fn retain(&mut self, keeps: impl Fn(&V) -> bool) {
        self.young.retain(|_, weighed| keeps(&weighed.value));
        self.old.retain(|_, weighed| keeps(&weighed.value));
        self.young_weight = self.young.values().map(|weighed| weighed.weight).sum();
    }

    fn put(&mut self, key: K, weighed: Weighed<V>) {
        if self.young_weight + weighed.weight > self.weight_max / 2 {
            self.old = std::mem::take(&mut self.young);
            self.young_weight = 0;
        }
        self.young_weight += weighed.weight;
        if let Some(replaced) = self.young.insert(key, weighed) {
            self.young_weight -= replaced.weight;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_stays_and_the_rest_is_forgotten() {
        let mut memo = Memo::new(8);
        memo.insert("used".to_string(), 0, 1);
        for n in 0..20 {
            memo.insert(format!("once {n}"), n, 1);
            assert_eq!(memo.get("used"), Some(&0));
        }
        assert_eq!(memo.get("once 0"), None);
        assert_eq!(memo.get("once 19"), Some(&19));
        assert!(memo.young.len() + memo.old.len() <= 8);
    }

    #[test]
    fn a_value_too_heavy_for_a_generation_is_not_kept() {
        let mut memo = Memo::new(8);
        memo.insert("light".to_string(), 1, 4);
        memo.insert("heavy".to_string(), 2, 5);
        assert_eq!(memo.get("heavy"), None);
        assert_eq!(memo.get("light"), Some(&1));
    }
}
