//! Tool sets seen before: in which order and bytes a request's tools are written, so that most of them stand in the cells.
//!
//! A *set* is the tools of one request, whatever their order; two tools are one if they say the same (`canonical`). A known
//! set is rendered as it first was. A new one begins like the known set that most of it can follow, and ends with what that
//! one does not have, so that a tool that changes with each request comes to stand last. Nothing is sorted: without
//! evidence the client's own order stays, and so does each tool, once. Sets belong to an owner and a model; private text,
//! bounded, kept beside the records. Lost sets cost tokens, never truth.

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::live::{Digest, owner_digest};
use super::memo::Memo;
use super::{canonical, toolset};
use crate::request::Owner;

/// All sets of all owners: 200 of thirty tools. Records have the rest of 32 MiB.
const N_BYTES_MAX: usize = 4 << 20;
/// Of one owner and model. A house's programs have two or three each; more are one with a tool that never stays the same.
const N_SETS_MAX: usize = 16;
/// Bytes of lists as clients sent them, which are read once: parsing thirty tools takes 0.2 ms.
const LISTS_BYTES_MAX: usize = 2 << 20;
/// Lists of which it is known that they were sent.
const N_SENT_MAX: usize = 1024;

/// What was done to a request's tools, or would be in `observe`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ToolsUse {
    pub order: ToolsOrder,
    /// Bytes of definitions that stand as an earlier request left them and as sent would be computed again.
    pub n_gained_bytes: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ToolsOrder {
    /// The client's own order and bytes.
    #[default]
    AsSent,
    /// The set is known, and stands as it first did.
    AsFirstSeen,
    /// A known set whole, and behind it so many tools that it does not have.
    Appended { n_new: usize },
    /// The first tools of a known set and no others.
    Prefix,
    /// So many tools begin as in a known set. The next of that set is missing, and what else there is stands behind.
    Partly { n_leading: usize },
}

impl ToolsOrder {
    pub fn name(self) -> &'static str {
        match self {
            ToolsOrder::AsSent => "as_sent",
            ToolsOrder::AsFirstSeen => "as_first_seen",
            ToolsOrder::Appended { .. } => "appended",
            ToolsOrder::Prefix => "prefix",
            ToolsOrder::Partly { .. } => "partly",
        }
    }
}

/// A request's tools, and whose they are.
pub(super) struct Wish<'a> {
    pub(super) owner: Owner,
    pub(super) model: &'a str,
    pub(super) tools: &'a [String],
    /// The profile's own, which all its clients share.
    pub(super) house: &'a [String],
    /// Unix time in seconds.
    pub(super) now: i64,
}

/// All sets. Owned by the planner's thread.
pub(super) struct SeenTools {
    /// The least used first.
    sets: Vec<Set>,
    n_bytes: usize,
    n_bytes_max: usize,
    lists: Memo<blake3::Hash, List>,
    /// What was sent since the start: sent so again, it would be held.
    sent: Memo<blake3::Hash, ()>,
}

#[derive(Serialize, Deserialize)]
struct Set {
    owner: Digest,
    model: String,
    tools: List,
    used_at: i64,
    /// Rendered since the start. What was rendered before left the cells with it.
    #[serde(skip)]
    is_held: bool,
}

/// Tools in the order they are rendered in.
type List = Arc<[Tool]>;

/// A definition with what it says. In a file it is its text alone.
#[derive(Clone, Serialize, Deserialize)]
#[serde(from = "Arc<str>", into = "Arc<str>")]
struct Tool {
    text: Arc<str>,
    canonical: blake3::Hash,
}

impl SeenTools {
    fn new(n_bytes_max: usize) -> SeenTools {
        let (lists, sent) = (Memo::new(LISTS_BYTES_MAX), Memo::new(N_SENT_MAX));
        SeenTools { sets: Vec::new(), n_bytes: 0, n_bytes_max, lists, sent }
    }

    /// The tools of a request as they are to be rendered; `None`: as they were sent. The set counts as rendered so, and an
    /// equal one gets equal bytes.
    pub(super) fn arrange(&mut self, wish: &Wish) -> (Option<Vec<String>>, ToolsUse) {
        let owner = owner_digest(wish.owner);
        let was_sent = self.note_sent(owner, wish);
        let (asked, house) = (self.list(wish.tools), self.list(wish.house));
        let own = |set: &&Set| set.owner == owner && set.model == wish.model;
        let is_house = is_same_set(&house, &asked);

        let known = self.sets.iter().filter(own).find(|set| is_same_set(&set.tools, &asked));
        let (tools, order) = match known {
            _ if is_house => (house.clone(), ToolsOrder::AsFirstSeen),
            Some(set) => (set.tools.clone(), ToolsOrder::AsFirstSeen),
            // The last one used first: of two that are equally good it is the likelier to be held.
            None => best_order(self.sets.iter().rev().filter(own).map(|set| &set.tools).chain([&house]), &asked),
        };
        let is_changed = tools.iter().zip(&*asked).any(|(tool, asked)| tool.text != asked.text);
        let n_held_bytes = |list: &List| {
            let held = self.sets.iter().filter(own).filter(|set| set.is_held).map(|set| &set.tools).chain([&house]);
            held.map(|held| n_common_bytes(held, list)).max().unwrap_or(0)
        };
        let n_gained_bytes = if was_sent { 0 } else { n_held_bytes(&tools).saturating_sub(n_held_bytes(&asked)) };
        if !is_house {
            self.note_use(owner, wish, &tools);
        }
        match is_changed {
            false => (None, ToolsUse::default()),
            true => {
                let written = tools.iter().map(|tool| tool.text.to_string()).collect();
                (Some(written), ToolsUse { order, n_gained_bytes })
            }
        }
    }

    /// Forgets sets not used since `used_since`. Whether there were any.
    pub(super) fn idle(&mut self, used_since: i64) -> bool {
        self.retain(|set| set.used_at >= used_since)
    }

    /// Forgets the sets of `whose`; `None`: all. Whether there were any.
    pub(super) fn forget(&mut self, whose: Option<Owner>) -> bool {
        let owner = whose.map(owner_digest);
        self.lists = Memo::new(LISTS_BYTES_MAX);
        self.retain(|set| owner.is_some_and(|owner| !owner.is_client_of(set.owner)))
    }

    fn retain(&mut self, keeps: impl Fn(&Set) -> bool) -> bool {
        let n_before = self.sets.len();
        self.sets.retain(keeps);
        self.n_bytes = self.sets.iter().map(Set::n_bytes).sum();
        n_before != self.sets.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sets.is_empty()
    }

    fn list(&mut self, tools: &[String]) -> List {
        let key = toolset::key(tools);
        if let Some(list) = self.lists.get(&key) {
            return list.clone();
        }
        let list: List = tools.iter().map(|tool| Tool::from(Arc::from(tool.as_str()))).collect();
        self.lists.insert(key, list.clone(), n_bytes(&list));
        list
    }

    /// Whether the owner sent just these bytes before.
    fn note_sent(&mut self, owner: Digest, wish: &Wish) -> bool {
        let mut hasher = blake3::Hasher::new();
        canonical::add(&mut hasher, owner.bytes());
        canonical::add(&mut hasher, wish.model.as_bytes());
        hasher.update(toolset::key(wish.tools).as_bytes());
        let key = hasher.finalize();
        let was_sent = self.sent.get(&key).is_some();
        self.sent.insert(key, (), 1);
        was_sent
    }

    /// The set of `tools` was rendered in this order: it is the last one used now.
    fn note_use(&mut self, owner: Digest, wish: &Wish, tools: &List) {
        let own = |set: &Set| set.owner == owner && set.model == wish.model;
        let known = self.sets.iter().position(|set| own(set) && is_same_set(&set.tools, tools));
        match known {
            Some(at) => self.remove(at),
            None if self.sets.iter().filter(|set| own(set)).count() == N_SETS_MAX => {
                let oldest = self.sets.iter().position(own).expect("it was just counted");
                self.remove(oldest);
            }
            None => {}
        }
        let model = wish.model.to_owned();
        self.keep(Set { owner, model, tools: tools.clone(), used_at: wish.now, is_held: true });
    }

    /// Ends within the bound: the least used give way. One that would drive out most others is not kept.
    fn keep(&mut self, set: Set) {
        if set.n_bytes() > self.n_bytes_max / 4 {
            return;
        }
        self.n_bytes += set.n_bytes();
        self.sets.push(set);
        while self.n_bytes > self.n_bytes_max {
            self.remove(0);
        }
    }

    fn remove(&mut self, at: usize) {
        self.n_bytes -= self.sets.remove(at).n_bytes();
    }
}

/// `asked` in the order that most of it has in one of `known`: what begins as there, then what else is there, then the rest
/// as it was sent.
fn best_order<'s>(known: impl Iterator<Item = &'s List>, asked: &List) -> (List, ToolsOrder) {
    let mut best: Option<(usize, usize)> = None;
    let mut chosen = (asked.clone(), ToolsOrder::AsSent);
    for known in known {
        let mut rest: Vec<Option<&Tool>> = asked.iter().map(Some).collect();
        let shared: Vec<Option<&Tool>> = known
            .iter()
            .map(|tool| {
                let is_it = |asked: &&mut Option<&Tool>| asked.is_some_and(|asked| asked.canonical == tool.canonical);
                rest.iter_mut().find(is_it).and_then(Option::take).map(|_| tool)
            })
            .collect();
        let n_leading = shared.iter().take_while(|tool| tool.is_some()).count();
        let n_bytes = |tools: &[Option<&Tool>]| tools.iter().flatten().map(|tool| tool.text.len()).sum::<usize>();
        let gain = (n_bytes(&shared[..n_leading]), n_bytes(&shared));
        if gain.1 == 0 || best.is_some_and(|best| gain <= best) {
            continue;
        }
        best = Some(gain);
        let order = match (n_leading == known.len(), n_leading == asked.len()) {
            (true, _) => ToolsOrder::Appended { n_new: asked.len() - n_leading },
            (false, true) => ToolsOrder::Prefix,
            (false, false) => ToolsOrder::Partly { n_leading },
        };
        chosen = (shared.into_iter().chain(rest).flatten().cloned().collect(), order);
    }
    chosen
}

/// Whether two lists are the same tools, whatever their order.
fn is_same_set(a: &List, b: &List) -> bool {
    let sorted = |list: &List| {
        let mut canonical: Vec<[u8; 32]> = list.iter().map(|tool| tool.canonical.into()).collect();
        canonical.sort_unstable();
        canonical
    };
    a.len() == b.len() && sorted(a) == sorted(b)
}

/// Bytes at the front that two lists have in common, in whole tools.
fn n_common_bytes(a: &List, b: &List) -> usize {
    a.iter().zip(&**b).take_while(|(a, b)| a.text == b.text).map(|(tool, _)| tool.text.len()).sum()
}

fn n_bytes(list: &List) -> usize {
    // The counts of its `Arc`.
    let n_bytes = |tool: &Tool| tool.text.len() + size_of::<Tool>() + 2 * size_of::<usize>();
    list.iter().map(n_bytes).sum()
}

impl Set {
    fn n_bytes(&self) -> usize {
        size_of::<Set>() + self.model.len() + n_bytes(&self.tools)
    }
}

impl From<Arc<str>> for Tool {
    fn from(text: Arc<str>) -> Tool {
        Tool { canonical: canonical::tool(&text), text }
    }
}

impl From<Tool> for Arc<str> {
    fn from(tool: Tool) -> Arc<str> {
        tool.text
    }
}

impl Default for SeenTools {
    fn default() -> SeenTools {
        SeenTools::new(N_BYTES_MAX)
    }
}

impl Serialize for SeenTools {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.sets.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for SeenTools {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<SeenTools, D::Error> {
        let mut seen = SeenTools::default();
        Vec::<Set>::deserialize(deserializer)?.into_iter().for_each(|set| seen.keep(set));
        Ok(seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: Owner = Owner::Private([1; 32]);

    fn tool(name: &str) -> String {
        format!(r#"{{"function": {{"name": "{name}", "description": "{}"}}}}"#, "What it does. ".repeat(20))
    }

    fn arrange(seen: &mut SeenTools, owner: Owner, tools: &[String], now: i64) -> (Option<Vec<String>>, ToolsUse) {
        seen.arrange(&Wish { owner, model: "model", tools, house: &[], now })
    }

    fn check(seen: &SeenTools) {
        assert_eq!(seen.n_bytes, seen.sets.iter().map(Set::n_bytes).sum::<usize>());
        assert!(seen.n_bytes <= seen.n_bytes_max);
    }

    #[test]
    fn the_least_used_sets_give_way() {
        let mut seen = SeenTools::new(20_000);
        let used = ["used", "also"].map(tool);
        arrange(&mut seen, OWNER, &used, 0);
        for n in 0..100 {
            let once = [tool(&format!("once {n}"))];
            assert_eq!(arrange(&mut seen, Owner::Private([n; 32]), &once, 0).0, None);
            arrange(&mut seen, OWNER, &used, 0);
            check(&seen);
        }
        assert!(seen.sets.len() > 10);
        let turned = [used[1].clone(), used[0].clone()];
        assert_eq!(arrange(&mut seen, OWNER, &turned, 0).0.as_deref(), Some(&used[..]));
        // Much of all that may be kept: it stays as it is, and so does what is known.
        let large = [tool(&"x".repeat(5_000))];
        assert_eq!(arrange(&mut seen, OWNER, &large, 0), (None, ToolsUse::default()));
        check(&seen);
        assert_eq!(arrange(&mut seen, OWNER, &turned, 0).0.as_deref(), Some(&used[..]));
    }

    #[test]
    fn a_client_whose_tools_never_stay_the_same_keeps_to_its_own_share() {
        let mut seen = SeenTools::default();
        let other = Owner::Private([2; 32]);
        arrange(&mut seen, other, &["a", "b"].map(tool), 0);
        for n in 0..100 {
            arrange(&mut seen, OWNER, &[tool("same"), tool(&format!("changing {n}"))], 0);
        }
        check(&seen);
        assert_eq!(seen.sets.len(), N_SETS_MAX + 1);
        assert_eq!(arrange(&mut seen, other, &["b", "a"].map(tool), 0).1.order, ToolsOrder::AsFirstSeen);
    }

    #[test]
    fn what_was_not_used_for_long_is_forgotten_and_the_rest_is_loaded_as_it_was() {
        let mut seen = SeenTools::default();
        arrange(&mut seen, OWNER, &["a", "b"].map(tool), 10);
        arrange(&mut seen, OWNER, &["c", "d"].map(tool), 20);
        assert!(!seen.idle(10));
        assert!(seen.idle(11));
        check(&seen);
        let mut loaded: SeenTools = serde_json::from_slice(&serde_json::to_vec(&seen).unwrap()).unwrap();
        check(&loaded);
        assert_eq!(loaded.n_bytes, seen.n_bytes);
        assert_eq!(arrange(&mut loaded, OWNER, &["b", "a"].map(tool), 30).0, None);
        assert_eq!(
            arrange(&mut loaded, OWNER, &["d", "c"].map(tool), 30).0.as_deref(),
            Some(&["c", "d"].map(tool)[..])
        );
    }
}
