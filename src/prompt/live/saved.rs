//! Families and records as they are written to a file and read back.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::Live;
use super::family::Family;
use super::records::{Record, RecordId};

#[derive(Serialize)]
struct Saved<'a> {
    next_family: u64,
    families: &'a [Family],
    records: Vec<(RecordId, &'a Record)>,
}

#[derive(Deserialize)]
struct Loaded {
    next_family: u64,
    families: Vec<Family>,
    records: Vec<(RecordId, Record)>,
}

impl Serialize for Live {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Live { families, next_family, records, .. } = self;
        Saved { next_family: *next_family, families, records: records.iter().collect() }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Live {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Live, D::Error> {
        let Loaded { next_family, families, records } = Loaded::deserialize(deserializer)?;
        if !families.iter().all(Family::is_whole) {
            return Err(de::Error::custom("a family has no layout"));
        }
        let mut live = Live { families, next_family, ..Live::default() };
        live.families.iter_mut().for_each(Family::weigh);
        for (id, record) in records {
            live.records.restore(id, record);
        }
        Ok(live)
    }
}
