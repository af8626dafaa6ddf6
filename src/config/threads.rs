//! How many CPU threads the engine gets.
//!
//! A *core* is a physical one: two hardware threads of one core share its arithmetic units, and ggml's barriers make a
//! thread that must wait for its core hold up all others. Nothing here looks at load.

use std::collections::BTreeSet;
use std::num::NonZero;
use std::path::Path;
use std::thread;

use crate::engine::Threads;

/// What this process may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Processors {
    /// Physical cores of the machine; `None` where the system does not tell.
    pub(super) n_cores: Option<usize>,
    /// Hardware threads that the affinity mask and the cgroup's quota lend us, at least 1.
    pub(super) n_available: usize,
}

impl Processors {
    /// Reads this machine.
    pub(super) fn here() -> Processors {
        Processors {
            n_cores: n_cores(Path::new("/sys/devices/system/cpu")),
            n_available: thread::available_parallelism().map_or(1, NonZero::get),
        }
    }

    /// Threads for the engine: never more than are available. `configured` = 0 leaves one core to everything else, since
    /// a home server is never idle and one busy neighbour stalls every barrier of a fully used machine.
    ///
    /// Prefill takes the second of two cores all the same: it is 1.8 times as fast then, and no slower beside a busy thread,
    /// while decoding gains nothing and loses (`main.rs`, `settle_openmp`, has the table). With more cores that is not measured.
    pub(super) fn threads(self, configured: usize) -> Threads {
        if configured > 0 {
            return Threads::same(configured.min(self.n_available));
        }
        let n_cores = self.n_cores.unwrap_or(self.n_available).min(self.n_available);
        let decode = n_cores.saturating_sub(1).max(1);
        Threads { decode, prefill: decode.max(n_cores.min(2)) }
    }
}

/// Linux lists for each hardware thread the ones on its core ("0,4"): as many cores as there are different lists.
fn n_cores(cpus: &Path) -> Option<usize> {
    let lists: BTreeSet<String> = cpus
        .read_dir()
        .ok()?
        .filter_map(|entry| std::fs::read_to_string(entry.ok()?.path().join("topology/thread_siblings_list")).ok())
        .collect();
    (!lists.is_empty()).then_some(lists.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_leaves_one_core_and_nothing_exceeds_what_is_available() {
        for (n_cores, n_available, configured, decode, prefill) in [
            (Some(8), 16, 0, 7, 7),
            (Some(8), 2, 0, 1, 2),
            (Some(8), 4, 0, 3, 3),
            (Some(1), 2, 0, 1, 1),
            (Some(1), 1, 0, 1, 1),
            (None, 4, 0, 3, 3),
            (None, 1, 0, 1, 1),
            (Some(8), 16, 8, 8, 8),
            (Some(8), 16, 12, 12, 12),
            (Some(8), 2, 12, 2, 2),
        ] {
            let processors = Processors { n_cores, n_available };
            let expected = Threads { decode, prefill };
            assert_eq!(processors.threads(configured), expected, "{processors:?}, configured {configured}");
        }
    }

    #[test]
    fn two_hardware_threads_of_one_core_count_once() {
        let cpus = tempfile::tempdir().unwrap();
        for (cpu, siblings) in [("cpu0", "0,2\n"), ("cpu1", "1,3\n"), ("cpu2", "0,2\n"), ("cpu3", "1,3\n")] {
            let topology = cpus.path().join(cpu).join("topology");
            std::fs::create_dir_all(&topology).unwrap();
            std::fs::write(topology.join("thread_siblings_list"), siblings).unwrap();
        }
        std::fs::create_dir(cpus.path().join("cpufreq")).unwrap();
        assert_eq!(n_cores(cpus.path()), Some(2));
    }

    #[test]
    fn a_system_that_tells_nothing_is_unknown() {
        let empty = tempfile::tempdir().unwrap();
        assert_eq!(n_cores(empty.path()), None);
        assert_eq!(n_cores(&empty.path().join("missing")), None);
    }
}
