//! The thread behind its door.

use std::fs;
use std::path::Path;
use std::sync::mpsc::Receiver;

use super::*;
use crate::kv::{Kept, Piece};
use crate::request::Token;

const ALICE: Owner = Owner::Private([1; 32]);

fn segment(first: i32) -> Segment {
    let tokens: Vec<Token> = (first..first + 20).map(Token).collect();
    Segment::new(
        ALICE.into(),
        Kept::Private,
        false,
        &tokens,
        0,
        vec![Piece { n_tokens: 20, bytes: vec![5; 100].into() }],
    )
}

fn start(path: &Path) -> (SnapshotsHandle, Receiver<Report>, std::thread::JoinHandle<()>) {
    let identity = Identity::new(vec![("model", "m".to_owned())]);
    let folder = Folder::open(path.join("kv"), identity, Secret([7; 32])).unwrap();
    let (sender, reports) = mpsc::sync_channel(100);
    let snapshots = Snapshots::new(folder, SWEEP_EVERY, Box::new(move |report| drop(sender.send(report))));
    let (handle, inbox) = SnapshotsHandle::new();
    let thread = std::thread::spawn(move || snapshots.run(inbox));
    (handle, reports, thread)
}

#[test]
fn what_was_asked_before_the_stop_is_done_and_told_in_order() {
    let temp = tempfile::tempdir().unwrap();
    let (handle, reports, thread) = start(temp.path());
    let [one, two] = [segment(1), segment(2)];
    handle.write(one.clone()).unwrap();
    handle.read(one.header.key).unwrap();
    handle.write(two.clone()).unwrap();
    handle.remove(one.header.key).unwrap();
    handle.read(one.header.key).unwrap();
    handle.forget(Some(ALICE)).unwrap();
    handle.stop();
    thread.join().unwrap();
    let told: Vec<Report> = reports.try_iter().collect();
    assert!(matches!(&told[0], Report::Swept(swept) if swept.found.is_empty()));
    assert!(matches!(&told[1], Report::Written { key, .. } if *key == one.header.key));
    assert!(matches!(&told[2], Report::Read { segment, .. } if *segment == one));
    assert!(matches!(&told[3], Report::Written { key, .. } if *key == two.header.key));
    assert!(matches!(&told[4], Report::ReadFailed { reason, .. } if reason == "the file is gone"));
    assert!(matches!(&told[5], Report::Forgotten(gone) if *gone == [two.header.key]));
    assert_eq!(told.len(), 6);
}

#[test]
fn a_folder_that_was_removed_is_made_again() {
    let temp = tempfile::tempdir().unwrap();
    let (handle, reports, thread) = start(temp.path());
    assert!(matches!(reports.recv().unwrap(), Report::Swept(_)));
    fs::remove_dir_all(temp.path().join("kv")).unwrap();
    handle.write(segment(1)).unwrap();
    assert!(matches!(reports.recv().unwrap(), Report::Written { .. }));
    handle.stop();
    thread.join().unwrap();
}

#[test]
fn a_place_that_cannot_be_written_fails_one_file_after_the_other_and_nothing_else() {
    let temp = tempfile::tempdir().unwrap();
    let (handle, reports, thread) = start(temp.path());
    assert!(matches!(reports.recv().unwrap(), Report::Swept(_)));
    let path = temp.path().join("kv");
    fs::remove_dir_all(&path).unwrap();
    fs::write(&path, "a file where the folder was").unwrap();
    handle.write(segment(1)).unwrap();
    assert!(matches!(reports.recv().unwrap(), Report::WriteFailed { .. }));
    handle.read(segment(1).header.key).unwrap();
    assert!(matches!(reports.recv().unwrap(), Report::ReadFailed { .. }));
    fs::remove_file(&path).unwrap();
    handle.write(segment(1)).unwrap();
    assert!(matches!(reports.recv().unwrap(), Report::Written { .. }));
    handle.stop();
    thread.join().unwrap();
}
