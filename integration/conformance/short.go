// SPDX-License-Identifier: Apache-2.0

package main

// The short form runs these. They reach each method of the task service, the
// events, and what happens when a daemon or a shim ends; left out are tests of
// images, snapshots and the content store, which no shim sees, and some that take
// half a minute each.
const (
	clientShort = "^(" +
		"TestContainer(Attach|CloseIO|Exec|ExecNoBinaryExists|Hook|Kill|KillAll|KillInitKillsChildWhenNotHostPid|Metrics" +
		"|NoBinaryExists|Output|Pids|PTY|RuntimeOptionsv2|Start|UserID|Wait)" +
		"|TestDaemon(ReconnectsToShimIOPipesOnRestart|Restart|RestartWithRunningShim|RuntimeRoot)" +
		"|TestDeleted?(ContainerExecCreated|ContainerMetrics|RunningContainer)" +
		"|TestIssue(9103|10589|13030)|TestKillContainerDeletedByRunc|TestRuntimeInfo" +
		"|TestShim(DoesNotLeakPipes|DoesNotLeakSockets|InCgroup|OOMScore|SockLength)" +
		"|TestTask(ForceDelete|Resize|Spec|Update)|TestProcessForceDelete|TestShortRunningTaskPid|TestUserNamespaces|TestWaitStoppedTask" +
		")$"

	// All of it: it takes ten seconds.
	shimtestShort = ""

	critestShort = "should support basic operations on|Multiple Containers|Streaming|OOMKilled" +
		"|NamespaceOption|should support propagation|seccomp|RunAsUser"
)
