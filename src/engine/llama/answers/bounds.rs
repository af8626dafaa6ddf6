//! Which JSON schemas llama.cpp can turn into a grammar in bounded time and within a thread's stack.
//!
//! It walks them by recursion without a limit of its own: a reference that leads back to itself, a name of 100,000 letters or
//! a long chain of references ends the process, and a few alternatives of alternatives take for ever (common/json-schema.cpp,
//! json-schema-to-grammar.cpp). A *level* is a schema inside another one, by place or by reference.

use std::collections::HashSet;
use std::ptr;

use serde_json::Value;

/// Levels of one definition, and of a chain through all of them: 512 take a quarter of the smallest stack, 2 MiB.
const N_LEVELS_MAX: usize = 64;
const N_CHAINED_MAX: usize = 512;
/// Schemas in one, each as often as llama.cpp builds it: it builds one again for each of its parent's types.
const N_SCHEMAS_MAX: usize = 10_000;
/// Of one object. Those that may be left out cost the third power of their number: 256 take a tenth of a second.
const N_PROPERTIES_MAX: usize = 256;
/// Steps from alternative to alternative, through references, in all.
const N_STEPS_MAX: usize = 100_000;
/// Bytes of a property's name, and of the way to it: both become names of rules, which go through a recursive matcher.
const NAME_BYTES_MAX: usize = 128;
const PLACE_BYTES_MAX: usize = 2048;

/// Keywords whose value is a list of schemas that stand for each other or together.
const ALTERNATIVES: [&str; 3] = ["anyOf", "oneOf", "allOf"];

/// Why `schema` is too much, and where.
pub(super) fn check(schema: &Value) -> Result<(), String> {
    let mut walk =
        Walk { root: schema, seen: HashSet::new(), waiting: Vec::new(), all: Vec::new(), n_schemas: 0, n_levels: 0 };
    walk.node(schema, "#", 1, 1)?;
    while let Some((reference, target)) = walk.waiting.pop() {
        walk.node(target, reference, 1, 1)?;
    }
    let n_chained = walk.n_levels * (walk.seen.len() + 1);
    if n_chained > N_CHAINED_MAX {
        return Err(format!(
            "#: {} references to definitions of up to {} levels: at most {N_CHAINED_MAX} levels can be taken in a row",
            walk.seen.len(),
            walk.n_levels
        ));
    }
    let mut n_steps = 0;
    for (schema, place) in &walk.all {
        if walk.spread(schema, &mut Vec::new(), &mut n_steps).is_none() {
            return Err(format!("{place}: too many alternatives of alternatives"));
        }
        let n_joined: usize = parts(schema, "allOf").map(|part| walk.n_properties(part)).sum();
        if n_joined > N_PROPERTIES_MAX {
            return Err(format!("{place}/allOf: {n_joined} properties together: at most {N_PROPERTIES_MAX}"));
        }
    }
    Ok(())
}

struct Walk<'s> {
    root: &'s Value,
    /// Distinct references, and those of them that were not walked yet.
    seen: HashSet<&'s str>,
    waiting: Vec<(&'s str, &'s Value)>,
    all: Vec<(&'s Value, String)>,
    n_schemas: usize,
    n_levels: usize,
}

impl<'s> Walk<'s> {
    /// `n_copies`: how often llama.cpp builds `schema`.
    fn node(&mut self, schema: &'s Value, place: &str, n_levels: usize, n_copies: usize) -> Result<(), String> {
        let n_types = schema.get("type").and_then(Value::as_array).map_or(1, Vec::len);
        let n_copies = n_copies.saturating_mul(n_types.max(1));
        self.n_schemas = self.n_schemas.saturating_add(n_copies);
        self.n_levels = self.n_levels.max(n_levels);
        if n_levels > N_LEVELS_MAX {
            return Err(format!("{place}: nested deeper than {N_LEVELS_MAX} levels"));
        }
        if self.n_schemas > N_SCHEMAS_MAX {
            return Err(format!("{place}: more than {N_SCHEMAS_MAX} schemas in one"));
        }
        if place.len() > PLACE_BYTES_MAX {
            return Err(format!("{:.100}…: the names are too long", place));
        }
        self.all.push((schema, place.to_owned()));
        if let Some(reference) = reference(schema) {
            return self.refer(schema, reference, place);
        }
        for keyword in ALTERNATIVES.into_iter().chain(["prefixItems", "items"]) {
            for (index, part) in parts(schema, keyword).enumerate() {
                self.node(part, &format!("{place}/{keyword}/{index}"), n_levels + 1, n_copies)?;
            }
        }
        for keyword in ["items", "prefixItems", "additionalProperties"] {
            if let Some(part) = schema.get(keyword).filter(|part| part.is_object()) {
                self.node(part, &format!("{place}/{keyword}"), n_levels + 1, n_copies)?;
            }
        }
        let properties = schema.get("properties").and_then(Value::as_object);
        if let Some(properties) = properties.filter(|properties| properties.len() > N_PROPERTIES_MAX) {
            return Err(format!("{place}: {} properties: at most {N_PROPERTIES_MAX}", properties.len()));
        }
        for (name, property) in properties.into_iter().flatten() {
            if name.len() > NAME_BYTES_MAX {
                return Err(format!("{place}/properties: a name has {} bytes: at most {NAME_BYTES_MAX}", name.len()));
            }
            self.node(property, &format!("{place}/properties/{name}"), n_levels + 1, n_copies)?;
        }
        Ok(())
    }

    fn refer(&mut self, schema: &'s Value, reference: &'s str, place: &str) -> Result<(), String> {
        // What it cannot find llama.cpp says itself.
        let Some(target) = self.resolve(reference) else { return Ok(()) };
        if self.target(schema).is_none() {
            return Err(format!("{place}: {reference} refers to itself and to nothing else"));
        }
        if self.seen.insert(reference) {
            self.waiting.push((reference, target));
        }
        Ok(())
    }

    /// As llama.cpp reads a reference.
    fn resolve(&self, reference: &str) -> Option<&'s Value> {
        let way = reference.strip_prefix("#/")?;
        way.split('/').try_fold(self.root, |at, name| match at {
            Value::Array(values) => values.get(name.parse::<usize>().ok()?),
            at => at.get(name),
        })
    }

    /// What `schema` is in the end, if it is a reference; `None`: references alone, in a circle.
    fn target(&self, schema: &'s Value) -> Option<&'s Value> {
        let mut at = schema;
        for _ in 0..=N_CHAINED_MAX {
            match reference(at).and_then(|reference| self.resolve(reference)) {
                Some(next) => at = next,
                None => return Some(at),
            }
        }
        None
    }

    /// Goes to every alternative of `schema`, as often as it can be reached; `None`: too often. `path` is not entered twice.
    fn spread(&self, schema: &'s Value, path: &mut Vec<&'s Value>, n_steps: &mut usize) -> Option<()> {
        *n_steps += 1;
        if *n_steps > N_STEPS_MAX {
            return None;
        }
        if let Some(target) = reference(schema).and_then(|reference| self.resolve(reference)) {
            if path.iter().any(|&known| ptr::eq(known, target)) {
                return Some(());
            }
            path.push(target);
            self.spread(target, path, n_steps)?;
            path.pop();
        } else {
            for part in ALTERNATIVES.into_iter().flat_map(|keyword| parts(schema, keyword)) {
                self.spread(part, path, n_steps)?;
            }
        }
        Some(())
    }

    /// Properties that a part of an `allOf` adds to the object.
    fn n_properties(&self, part: &'s Value) -> usize {
        let own = |part: &'s Value| {
            let part = self.target(part)?;
            Some(part.get("properties")?.as_object()?.len())
        };
        let of_alternatives = ["anyOf", "oneOf"].into_iter().flat_map(|keyword| parts(part, keyword)).filter_map(own);
        own(part).unwrap_or(0) + of_alternatives.sum::<usize>()
    }
}

fn reference(schema: &Value) -> Option<&str> {
    schema.get("$ref").and_then(Value::as_str)
}

fn parts<'s>(schema: &'s Value, keyword: &str) -> impl Iterator<Item = &'s Value> + use<'s> {
    schema.get(keyword).and_then(Value::as_array).into_iter().flatten()
}
