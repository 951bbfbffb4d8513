/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Entries for AArch64 (AAPCS64); see arch/x86_64/trampoline.S for the shape.
 * x16 and x17 are the only registers that a veneer may change, and "br x16"
 * may land on "bti c".
 */
	.text

.macro VGPU_ENTRY name, index
	.globl	\name
	.type	\name, %function
	.p2align 4
\name:
	.cfi_startproc
	hint	#34			/* bti c */
	adrp	x16, vgpu_real+8*\index
	ldr	x16, [x16, #:lo12:vgpu_real+8*\index]
	br	x16
	.cfi_endproc
	.size	\name, . - \name
.endm

.macro VGPU_LAZY index
	.p2align 4
vgpu_lazy_\index:
	hint	#34			/* bti c */
	mov	w17, #\index
	b	vgpu_lazy
.endm

/* Keeps x0-x7, x8 (address of a large result) and v0-v7. */
	.type	vgpu_lazy, %function
	.p2align 4
vgpu_lazy:
	.cfi_startproc
	stp	x29, x30, [sp, #-224]!
	.cfi_def_cfa_offset 224
	.cfi_offset x29, -224
	.cfi_offset x30, -216
	mov	x29, sp
	stp	x0, x1, [sp, #16]
	stp	x2, x3, [sp, #32]
	stp	x4, x5, [sp, #48]
	stp	x6, x7, [sp, #64]
	str	x8, [sp, #80]
	stp	q0, q1, [sp, #96]
	stp	q2, q3, [sp, #128]
	stp	q4, q5, [sp, #160]
	stp	q6, q7, [sp, #192]
	mov	w0, w17
	bl	vgpu_resolve
	mov	x16, x0
	ldp	x0, x1, [sp, #16]
	ldp	x2, x3, [sp, #32]
	ldp	x4, x5, [sp, #48]
	ldp	x6, x7, [sp, #64]
	ldr	x8, [sp, #80]
	ldp	q0, q1, [sp, #96]
	ldp	q2, q3, [sp, #128]
	ldp	q4, q5, [sp, #160]
	ldp	q6, q7, [sp, #192]
	ldp	x29, x30, [sp], #224
	.cfi_restore x29
	.cfi_restore x30
	.cfi_def_cfa_offset 0
	br	x16
	.cfi_endproc
	.size	vgpu_lazy, . - vgpu_lazy

.macro VGPU_TABLE
	.data
	.globl	vgpu_real
	.hidden	vgpu_real
	.type	vgpu_real, %object
	.p2align 6
vgpu_real:
.endm

.macro VGPU_SLOT index
	.xword	vgpu_lazy_\index
.endm

.macro VGPU_TABLE_END
	.size	vgpu_real, . - vgpu_real
.endm

	.section .note.GNU-stack, "", %progbits
	.text
