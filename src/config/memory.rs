//! How much memory this process could take, and what of it a cache may.
//!
//! *Available* is what could be allocated without taking it from somebody: the machine's own estimate, and what every cgroup
//! above this process leaves. A cache that is larger than that ends by an OOM kill, which no cache is worth.

use std::path::{Path, PathBuf};

/// Memory that stays free beside everything that is counted: stacks, requests, what others need in the next moment.
const SPARE_BYTES: u64 = 256 << 20;

/// What of `wanted` bytes fits where there are `n_bytes` and `needed` of them are taken, in whole MiB.
pub fn that_fits(wanted: u64, n_bytes: u64, needed: u64) -> u64 {
    wanted.min(n_bytes.saturating_sub(needed + SPARE_BYTES) >> 20 << 20)
}

/// The most that the cgroups of this process let it have, used or not, in bytes; `None`: as much as there is.
pub fn memory_limit() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    least_of_cgroups(&groups, Path::new("/sys/fs/cgroup"), Names::limit)
}

/// Bytes; `None` where the system does not tell.
pub fn available_memory() -> Option<u64> {
    let of_machine = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| of_meminfo(&text));
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let of_groups = least_of_cgroups(&groups, Path::new("/sys/fs/cgroup"), Names::left);
    of_machine.into_iter().chain(of_groups).min()
}

/// `MemAvailable`, which counts what the page cache would give back.
fn of_meminfo(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes << 10)
}

/// The least that `of_folder` finds for the groups in `/proc/self/cgroup` and those above them. Inside a container the group's own
/// path may not be mounted: then the mount itself is the group.
fn least_of_cgroups(groups: &str, mount: &Path, of_folder: fn(&Names, &Path) -> Option<u64>) -> Option<u64> {
    let left = groups.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, group) = (parts.next()?, parts.next()?, parts.next()?);
        let is_version_1 = controllers.split(',').any(|name| name == "memory");
        let (mount, names) = match (controllers.is_empty(), is_version_1) {
            (true, _) => (mount.to_owned(), &VERSION_2),
            (_, true) => (mount.join("memory"), &VERSION_1),
            _ => return None,
        };
        let own = mount.join(group.trim_start_matches('/'));
        let folders: Vec<PathBuf> =
            own.ancestors().take_while(|folder| folder.starts_with(&mount)).map(Into::into).collect();
        folders.iter().filter_map(|folder| of_folder(names, folder)).min()
    });
    left.min()
}

/// The files of a cgroup.
struct Names {
    limit: &'static str,
    used: &'static str,
    /// In `memory.stat`: pages of files that nobody used lately, which are given back before anybody is killed.
    reclaimable: &'static str,
}

const VERSION_2: Names = Names { limit: "memory.max", used: "memory.current", reclaimable: "inactive_file" };
const VERSION_1: Names =
    Names { limit: "memory.limit_in_bytes", used: "memory.usage_in_bytes", reclaimable: "total_inactive_file" };

impl Names {
    fn limit(&self, folder: &Path) -> Option<u64> {
        std::fs::read_to_string(folder.join(self.limit)).ok()?.trim().parse().ok()
    }

    /// What the group leaves; `None`: it has no limit ("max" is no number; version 1 writes a very large one).
    fn left(&self, folder: &Path) -> Option<u64> {
        let read = |name: &str| std::fs::read_to_string(folder.join(name)).ok();
        let limit = self.limit(folder)?;
        let used: u64 = read(self.used)?.trim().parse().ok()?;
        let stat = read("memory.stat").unwrap_or_default();
        let of_line = |line: &str| line.strip_prefix(self.reclaimable)?.trim().parse::<u64>().ok();
        let reclaimable = stat.lines().find_map(of_line).unwrap_or(0);
        Some((limit + reclaimable.min(used)).saturating_sub(used))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machines_estimate_is_read_in_bytes() {
        let text = "MemTotal:       16000000 kB\nMemFree:         1000000 kB\nMemAvailable:    2000000 kB\n";
        assert_eq!(of_meminfo(text), Some(2_048_000_000));
        assert_eq!(of_meminfo("MemTotal: 1 kB"), None);
    }

    #[test]
    fn a_cache_leaves_some_memory_free() {
        assert_eq!(that_fits(1 << 30, 4 << 30, 600 << 20), 1 << 30);
        assert_eq!(that_fits(1 << 30, 1 << 30, 600 << 20), 168 << 20);
        assert_eq!(that_fits(1 << 30, 100 << 20, 600 << 20), 0);
    }

    fn write(folder: &Path, files: &[(&str, &str)]) {
        std::fs::create_dir_all(folder).unwrap();
        for (name, text) in files {
            std::fs::write(folder.join(name), text).unwrap();
        }
    }

    #[test]
    fn the_tightest_group_above_decides() {
        let mount = tempfile::tempdir().unwrap();
        let stat = "anon 5\ninactive_file 100\nactive_file 7\n";
        write(
            &mount.path().join("system.slice"),
            &[("memory.max", "1000\n"), ("memory.current", "700\n"), ("memory.stat", stat)],
        );
        write(
            &mount.path().join("system.slice/hob.service"),
            &[("memory.max", "max\n"), ("memory.current", "300\n"), ("memory.stat", stat)],
        );
        let left = |groups: &str| least_of_cgroups(groups, mount.path(), Names::left);
        assert_eq!(left("0::/system.slice/hob.service\n"), Some(400));
        assert_eq!(left("0::/elsewhere\n"), None, "no limit");
        let limit = least_of_cgroups("0::/system.slice/hob.service\n", mount.path(), Names::limit);
        assert_eq!(limit, Some(1000));
        // As a container sees it: its own group is the mount.
        write(mount.path(), &[("memory.max", "500\n"), ("memory.current", "600\n"), ("memory.stat", "")]);
        assert_eq!(left("0::/docker/abc\n"), Some(0));
    }

    #[test]
    fn version_1_is_read_where_it_is_mounted() {
        let mount = tempfile::tempdir().unwrap();
        let files = [
            ("memory.limit_in_bytes", "1000\n"),
            ("memory.usage_in_bytes", "200\n"),
            ("memory.stat", "inactive_file 9\ntotal_inactive_file 50\n"),
        ];
        write(&mount.path().join("memory/docker/abc"), &files);
        let groups = "5:cpu:/docker/abc\n4:memory:/docker/abc\n";
        assert_eq!(least_of_cgroups(groups, mount.path(), Names::left), Some(850));
    }
}
