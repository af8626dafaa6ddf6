//! How a request's prompt was planned, as far as it may be kept: names, hashes and counts, no text of it.
//!
//! A *plan record* is written as JSON into the row of its request and read back to say why it computed what it computed. What
//! is added to it later needs a default, so that older rows can be read.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// A word of hob's own.
type Word = Cow<'static, str>;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanRecord {
    /// "off", "observe", "safe", "optimise".
    pub layout: Word,
    /// What the history with its live blocks was rendered from: "untouched", "new", "appended", "retried", "trimmed",
    /// "system_changed", "compacted".
    pub history: Word,
    pub sections: Vec<SectionRecord>,
    /// Which tokens are whose, from the first to the last.
    pub regions: Vec<RegionRecord>,
    /// What left the client's system text, or would in `observe`.
    pub moved: Vec<MovedRecord>,
    pub gain: Option<GainRecord>,
    /// How the tools stand, or would in `observe`: "as_sent", "as_first_seen", "appended", "prefix", "partly".
    #[serde(default)]
    pub tools: Word,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SectionRecord {
    pub name: String,
    /// "fixed", "document", "session", "turn", "live".
    pub class: Word,
    pub n_bytes: usize,
    /// The token offset at which it ends, where that is a stable cut.
    pub cut: Option<usize>,
}

/// Tokens of one section, from the last region's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionRecord {
    pub section: usize,
    pub end: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MovedRecord {
    /// "clock", "prose", "key", "item", "row", "heading".
    pub kind: Word,
    pub n_bytes: usize,
    /// The first bytes of its BLAKE3 hash: whether it is the same as in another request.
    pub hash: String,
    /// The client's message it is from, and where in it.
    pub message: usize,
    pub byte: usize,
    /// The message in front of whose text it stands now; `None` where it stands nowhere anew.
    pub to_message: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GainRecord {
    /// The token from which on the prompt as sent had not been seen.
    pub from: usize,
    /// In `observe`: the tokens that would have been reused.
    pub to: Option<usize>,
}

/// Where in a prompt a token stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place<'a> {
    pub section: &'a SectionRecord,
    /// Tokens from the beginning of its region.
    pub offset: usize,
}

impl PlanRecord {
    pub fn is_observed(&self) -> bool {
        self.layout == "observe"
    }

    /// Tokens that layout spared this request, or in `observe` would have: of its prompt `n_cached` were reused.
    pub fn n_gained(&self, n_cached: usize) -> usize {
        match self.gain {
            None => 0,
            Some(GainRecord { from, to: None }) => n_cached.saturating_sub(from),
            Some(GainRecord { from, to: Some(to) }) => to.saturating_sub(n_cached.max(from)),
        }
    }

    /// Where token `at` stands; `None` behind the end.
    pub fn place(&self, at: usize) -> Option<Place<'_>> {
        let region_idx = self.regions.partition_point(|region| region.end <= at);
        let section = self.sections.get(self.regions.get(region_idx)?.section)?;
        let start = region_idx.checked_sub(1).map_or(0, |before_idx| self.regions[before_idx].end);
        Some(Place { section, offset: at - start })
    }

    /// Tokens of section `section_idx`.
    pub fn n_tokens(&self, section_idx: usize) -> usize {
        let starts = std::iter::once(0).chain(self.regions.iter().map(|region| region.end));
        let regions = self.regions.iter().zip(starts).filter(|(region, _)| region.section == section_idx);
        regions.map(|(region, start)| region.end - start).sum()
    }

    /// Where the newest turn begins, the live block in front of it included: what stands before was to be reused.
    pub fn question_start(&self) -> usize {
        let is_new = |region: &RegionRecord| {
            self.sections.get(region.section).is_some_and(|section| ["question", "live"].contains(&&*section.name))
        };
        let n_new = self.regions.iter().rev().take_while(|region| is_new(region)).count();
        (self.regions.len() - n_new).checked_sub(1).map_or(0, |last_idx| self.regions[last_idx].end)
    }

    /// The cause as people are told it: what the cache said of token `at`, or what the layout knows better.
    pub fn cause(&self, of_cache: &'static str, at: usize) -> &'static str {
        let is_before_question = at < self.question_start();
        match (of_cache, &*self.history) {
            ("appended" | "diverged", "trimmed") if is_before_question => "trimmed",
            ("appended" | "diverged", "system_changed" | "compacted") if is_before_question => "layout",
            ("appended", _) if self.place(at).is_some_and(|place| place.section.name == "live") => "live_block",
            _ => of_cache,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// System text and tools, a turn with its live block, a question with its own.
    pub(in crate::telemetry) fn plan() -> PlanRecord {
        let section = |name: &str, class, n_bytes, cut| SectionRecord { name: name.into(), class, n_bytes, cut };
        let region = |section, end| RegionRecord { section, end };
        PlanRecord {
            layout: "safe".into(),
            history: "appended".into(),
            sections: vec![
                section("client system", "session".into(), 1_200, None),
                section("tools", "fixed".into(), 2_000, Some(800)),
                section("history", "turn".into(), 90, None),
                section("question", "turn".into(), 60, None),
                section("live", "live".into(), 130, None),
            ],
            regions: [(0, 300), (1, 800), (4, 830), (2, 900), (4, 930), (3, 1_000)]
                .map(|(s, end)| region(s, end))
                .into(),
            moved: vec![MovedRecord {
                kind: "clock".into(),
                n_bytes: 28,
                hash: "5f0c1e2d3b4a".into(),
                message: 0,
                byte: 0,
                to_message: Some(3),
            }],
            gain: Some(GainRecord { from: 12, to: None }),
            tools: "as_sent".into(),
        }
    }

    #[test]
    fn each_token_has_its_place() {
        let plan = plan();
        let place = |at| plan.place(at).map(|place| (place.section.name.as_str(), place.offset));
        assert_eq!(place(0), Some(("client system", 0)));
        assert_eq!(place(299), Some(("client system", 299)));
        assert_eq!(place(300), Some(("tools", 0)));
        assert_eq!(place(929), Some(("live", 29)));
        assert_eq!(place(930), Some(("question", 0)));
        assert_eq!(place(1_000), None);
        assert_eq!([0, 1, 2, 3, 4].map(|section| plan.n_tokens(section)), [300, 500, 70, 70, 60]);
        assert_eq!(plan.question_start(), 900);
        assert_eq!((PlanRecord::default().place(0), PlanRecord::default().question_start()), (None, 0));
    }

    #[test]
    fn the_layout_knows_some_causes_better_than_the_cache() {
        let with = |history: &'static str| PlanRecord { history: history.into(), ..plan() };
        for (history, of_cache, at, expected) in [
            ("appended", "appended", 930, "appended"),
            ("appended", "appended", 905, "live_block"),
            ("trimmed", "appended", 850, "trimmed"),
            ("trimmed", "appended", 950, "appended"),
            ("trimmed", "evicted", 850, "evicted"),
            ("compacted", "appended", 805, "layout"),
            ("system_changed", "diverged", 10, "layout"),
            ("appended", "diverged", 10, "diverged"),
        ] {
            assert_eq!(with(history).cause(of_cache, at), expected, "{history} {of_cache} {at}");
        }
    }

    #[test]
    fn a_gain_counts_what_was_reused_behind_it() {
        let with = |from, to| PlanRecord { gain: Some(GainRecord { from, to }), ..plan() };
        assert_eq!([5, 12, 900].map(|n_cached| with(12, None).n_gained(n_cached)), [0, 0, 888]);
        assert_eq!([5, 12, 300, 900].map(|n_cached| with(12, Some(780)).n_gained(n_cached)), [768, 768, 480, 0]);
        assert_eq!(PlanRecord { gain: None, ..plan() }.n_gained(900), 0);
    }

    #[test]
    fn it_is_read_back_as_it_was_written() {
        let written = serde_json::to_string(&plan()).unwrap();
        assert_eq!(serde_json::from_str::<PlanRecord>(&written).unwrap(), plan());
    }
}
