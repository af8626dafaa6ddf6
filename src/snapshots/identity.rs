//! The identity of K/V: everything that changes the numbers in the cells beside the tokens.
//!
//! *Identity* is a list of facts, each with a name; K/V of another one is as useless as none. It is kept as text, so that a
//! file that no longer fits can say which fact has changed.

/// The facts that a miss is named after.
pub const MODEL: &str = "model";
pub const KV_TYPE: &str = "kv_type";
pub const ADAPTER: &str = "adapter";

/// Facts in order: `model` (BLAKE3 of the weights' file), `kv_type`, `flash_attention`, …
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    facts: Vec<(&'static str, String)>,
    /// The hash of each configured adapter's file. No fact of all K/V: it counts for what was computed under that adapter.
    adapters: Vec<blake3::Hash>,
}

/// A fact that has changed since a file was written.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("it was written with {name} {was}, this is {name} {is}")]
pub struct Mismatch {
    pub name: String,
    pub was: String,
    pub is: String,
}

/// Written for a fact that only one of two sides knows.
const NOTHING: &str = "none";

impl Identity {
    /// Names and values hold no line break and names no `=`.
    pub fn new(facts: Vec<(&'static str, String)>) -> Identity {
        let is_plain = |(name, value): &(&str, String)| !name.contains(['=', '\n']) && !value.contains('\n');
        assert!(facts.iter().all(is_plain), "facts are single lines");
        Identity { facts, adapters: Vec::new() }
    }

    /// `adapters`: the hash of each configured adapter's file, in the configuration's order.
    pub fn with_adapters(self, adapters: Vec<blake3::Hash>) -> Identity {
        Identity { adapters, ..self }
    }

    /// The hash of the file of the adapter `index`.
    pub fn adapter(&self, index: usize) -> Option<&blake3::Hash> {
        self.adapters.get(index)
    }

    /// Tells if the adapter `index` is another one than that of `file`.
    pub fn other_adapter(&self, index: usize, file: &blake3::Hash) -> Option<Mismatch> {
        let here = self.adapter(index);
        let is = here.map_or(NOTHING.to_owned(), |hash| hash.to_hex().to_string());
        let mismatch = || Mismatch { name: ADAPTER.to_owned(), was: file.to_hex().to_string(), is };
        (here != Some(file)).then(mismatch)
    }

    /// One line a fact: `name=value`.
    pub fn text(&self) -> String {
        self.facts.iter().map(|(name, value)| format!("{name}={value}\n")).collect()
    }

    /// The first fact in which `written_as`, a `text`, is another identity.
    pub fn mismatch(&self, written_as: &str) -> Option<Mismatch> {
        if written_as == self.text() {
            return None;
        }
        let written: Vec<(&str, &str)> = written_as.lines().filter_map(|line| line.split_once('=')).collect();
        let was = |name: &str| written.iter().find(|(other, _)| *other == name).map_or(NOTHING, |(_, value)| value);
        let changed = self.facts.iter().find(|(name, value)| was(name) != value);
        let is_known = |name: &str| self.facts.iter().any(|(known, _)| *known == name);
        let mismatch = |name: &str, was: &str, is: &str| Mismatch {
            name: name.to_owned(),
            was: was.to_owned(),
            is: is.to_owned(),
        };
        Some(match changed {
            Some((name, value)) => mismatch(name, was(name), value),
            None => match written.iter().find(|(name, _)| !is_known(name)) {
                Some((name, value)) => mismatch(name, value, NOTHING),
                None => mismatch("facts", "in another order", "in this one"),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(kv_type: &str) -> Identity {
        Identity::new(vec![("model", "abc".to_owned()), ("kv_type", kv_type.to_owned())])
    }

    #[test]
    fn what_has_changed_is_named() {
        let now = identity("q8_0");
        assert_eq!(now.mismatch(&now.text()), None);
        let changed = now.mismatch(&identity("f16").text()).unwrap();
        assert_eq!(changed.to_string(), "it was written with kv_type f16, this is kv_type q8_0");
        assert_eq!(now.mismatch("model=abc\n").unwrap().was, "none");
        assert_eq!(now.mismatch(&format!("{}adapter=x\n", now.text())).unwrap().name, "adapter");
        assert_eq!(now.mismatch("kv_type=q8_0\nmodel=abc\n").unwrap().name, "facts");
        assert_eq!(now.mismatch("").unwrap().name, "model");
    }
}
