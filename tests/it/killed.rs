//! A daemon that is killed while it writes K/V: what can be seen afterwards is whole.
//!
//! The test starts itself as a child that writes segments and waits after each step of each until its parent lets it go on; the
//! parent sends SIGKILL at a chosen step.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use hob::kv::{Kept, Piece, Segment};
use hob::private::WriteStep;
use hob::request::{Owner, Token};
use hob::snapshots::{Folder, Identity, Secret};

/// The child's folder; not set in the parent.
const FOLDER: &str = "HOB_TEST_KILLED_FOLDER";
/// Six steps each: the last moments are those of the ninth segment.
const N_MOMENTS: usize = 50;
const N_STEPS: usize = 6;

fn segment(number: usize) -> Segment {
    let tokens: Vec<Token> = (0..300).map(|token| Token(token + number as i32)).collect();
    // Larger than the buffers on its way, so that half of it can lie on the disk.
    let piece = |n_tokens: usize| Piece { n_tokens, bytes: vec![number as u8; n_tokens * 1000].into() };
    Segment::new(Owner::Public.into(), Kept::Pin, false, &tokens, 0, vec![piece(256), piece(44)])
}

fn open(path: &Path) -> Folder {
    Folder::open(path.to_owned(), Identity::new(vec![("model", "m".to_owned())]), Secret([7; 32])).unwrap()
}

fn write_step_by_step(folder: &Folder) {
    let mut go_on = std::io::stdin().lines();
    for number in 0.. {
        let mut after = |step: WriteStep| {
            // Past the test runner, which keeps what is printed.
            let mut out = std::io::stderr();
            writeln!(out, "{step:?}").unwrap();
            go_on.next().expect("the parent lets go on, or kills").unwrap();
        };
        folder.write(&segment(number), &mut after).unwrap();
    }
}

#[test]
fn a_writer_killed_at_any_of_50_moments_leaves_only_whole_segments() {
    if let Some(path) = std::env::var_os(FOLDER) {
        return write_step_by_step(&open(&PathBuf::from(path)));
    }
    let name = "killed::a_writer_killed_at_any_of_50_moments_leaves_only_whole_segments";
    for moment in 0..N_MOMENTS {
        let temp = tempfile::tempdir().unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", name, "--nocapture"]).env(FOLDER, temp.path());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut steps = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut go_on = child.stdin.take().unwrap();
        for _ in 0..moment {
            steps.next().unwrap().unwrap();
            go_on.write_all(b"\n").unwrap();
        }
        let step = steps.next().unwrap().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();

        let folder = open(temp.path());
        let swept = folder.sweep(SystemTime::now(), Duration::MAX).unwrap();
        let (n_before, n_steps) = (moment / N_STEPS, moment % N_STEPS);
        let is_visible = ["Renamed", "FolderSynced"].contains(&step.as_str());
        assert_eq!(n_steps >= 4, is_visible, "the order of steps is the one this test knows");
        assert_eq!(
            swept.found.len(),
            n_before + usize::from(is_visible),
            "killed at {moment}, after {step}: {swept:?}"
        );
        for number in 0..swept.found.len() {
            let expected = segment(number);
            assert_eq!(folder.read(expected.header.key).unwrap(), Some(expected), "killed at {moment}, after {step}");
        }
        let n_files = std::fs::read_dir(temp.path()).unwrap().count();
        assert_eq!(n_files, swept.found.len() + 1, "nothing else stays but the folder's tag");
    }
}
